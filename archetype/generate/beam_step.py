"""One step of beam search: reorder the cache rows by parent beam, run the model, select the best continuations."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from archetype.generate.filters import largest
from archetype.generate.step import DecodeStep
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.state import State


class BeamStep(DecodeStep):
    """Decode step that extends every beam by one token.

    Args:
        model: in evaluation mode.
        state: state of the rows; each source has `num_beams` consecutive rows.
        num_beams: number of beams of each source.
        suppressed: (V,) values added to the log-probabilities (None: nothing).
        renormalize: whether the probabilities of the remaining tokens are renormalized to sum to 1.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        state: State,
        num_beams: int,
        suppressed: Tensor | None = None,
        renormalize: bool = False,
    ) -> None:
        num_rows, self._suppressed, self._renormalize = len(state.lengths), suppressed, renormalize
        self._scores = torch.zeros(num_rows // num_beams, num_beams, device=model.device)
        self._sources, self._starts = torch.zeros(2, num_rows, dtype=torch.long, device=model.device).unbind()
        self._any_goes_on_from_another = False
        super().__init__(model, state, (self._scores, self._sources, self._starts))

    @torch.inference_mode()
    def extend(
        self,
        newest: Int[ndarray, "slots beams"],
        scores: Float[ndarray, "slots beams"],
        parents: Int[ndarray, "slots beams"],
        starts: Int[ndarray, "slots beams"],
        adjust: Callable[[Float[Tensor, "B V"]], None] | None = None,
    ) -> Float[Tensor, "texts 3 N"]:
        """Return the best continuations of each source: total log-probability, candidate index and token, best first.

        The beam of a candidate is its index divided by `num_candidates`, the number of candidates of each beam.

        Args:
            newest: last token of each beam; slots beyond those in use are ignored.
            scores: log-probability of each beam.
            parents: the beam of the same source that each beam extends.
            starts: first cache slot in which a beam differs from its parent.
            adjust: changes the log-probabilities (B, V) in place; it is not part of the recorded step.
        """
        num_texts, width = self._scores.shape
        sources = parents[:num_texts] + width * np.arange(num_texts)[:, None]
        self._any_goes_on_from_another = bool((sources.ravel() != np.arange(sources.size)).any())
        self._sources.copy_(torch.from_numpy(sources.ravel()))
        self._starts.copy_(torch.from_numpy(starts[:num_texts].ravel()))
        self._scores.copy_(torch.from_numpy(scores[:num_texts]))
        best = self(torch.from_numpy(newest[:num_texts].reshape(-1, 1)).to(self._scores.device))
        if adjust is None:
            return best
        logs = self._logits.log_softmax(-1)
        adjust(logs)
        return self._best(logs, logs.new_zeros(len(logs), 1), largest)

    @property
    def num_candidates(self) -> int:
        """Candidates kept for each beam: 2 * num_beams, so that enough remain if num_beams of them end."""
        return min(2 * self._scores.shape[1], self.model.spec.vocab_size)

    def _compute(self, model: GenerativeModel, tokens: Int[Tensor, "B 1"], state: State) -> Tensor:
        # A recorded step always copies, since its list is fixed: a row whose source is itself costs nothing.
        if self._any_goes_on_from_another or model.kernels.records:
            state.targets.copy_rows(self._sources, self._starts)
        self._logits = super()._compute(model, tokens, state).float()
        return self._best(self._logits, self._logits.logsumexp(-1, keepdim=True))

    def _best(
        self,
        scores: Float[Tensor, "B V"],
        total: Float[Tensor, "B 1"],
        select: Callable[[Tensor, int], tuple[Tensor, Tensor]] = torch.topk,  # which has a native kernel
    ) -> Float[Tensor, "texts 3 N"]:
        # `scores - total` are log-probabilities of the next token: logits are normalized only where they are selected
        allowed = scores if self._suppressed is None else scores + self._suppressed
        if self._renormalize:  # clamped so that rows with no token left stay at -inf
            total = allowed.logsumexp(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        best, ids = select(allowed, self.num_candidates)  # (B, N) each
        logs = best - total
        num_texts, width = self._scores.shape
        totals = (self._scores[..., None] + logs.view(num_texts, width, -1)).flatten(1)
        totals, indices = totals.topk(min(2 * width, totals.shape[1]))
        # one float32 tensor, so that there is one transfer to the host; ids are exact in float32 up to 2^24
        chosen = ids.float().view(num_texts, -1).gather(1, indices)
        return torch.stack((totals, indices.float(), chosen), dim=1)
