"""One step of a beam search: beams go on from others, and the likeliest continuations of each text's beams come out."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from archetype.generate.step import DecodeStep
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.dispatch import recording
from archetype.nn.cache import State


class BeamStep(DecodeStep):
    """One token more of every beam.

    Args:
        model: in evaluation mode.
        state: of the rows, as many neighbours for each text as it has beams.
        num_beams: of each text.
        suppressed: added to log-probabilities, (V,); None: nothing.
        renormalize: whether the probabilities of what is left are made to sum to 1 again.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        state: State,
        num_beams: int,
        suppressed: Tensor | None = None,
        renormalize: bool = False,
    ) -> None:
        rows, self._suppressed, self._renormalize = len(state.lengths), suppressed, renormalize
        self._scores = torch.zeros(rows // num_beams, num_beams, device=model.device)
        self._sources, self._starts = torch.zeros(2, rows, dtype=torch.long, device=model.device).unbind()
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
        """The likeliest continuations of each text: log-probabilities, places among candidates, and tokens, best first.

        A candidate's beam is its place divided by the number of candidates of a beam, `num_candidates`.

        Args:
            newest: the last token of each beam; further slots are left out.
            scores: its log-probability.
            parents: the beam of its text that it goes on from.
            starts: the first place in which the two differ.
            adjust: changes the log-probabilities of each row's next token in place, which is not recorded.
        """
        texts, width = self._scores.shape
        sources = parents[:texts] + width * np.arange(texts)[:, None]
        self._any_goes_on_from_another = bool((sources.ravel() != np.arange(sources.size)).any())
        self._sources.copy_(torch.from_numpy(sources.ravel()))
        self._starts.copy_(torch.from_numpy(starts[:texts].ravel()))
        self._scores.copy_(torch.from_numpy(scores[:texts]))
        best = self(torch.from_numpy(newest[:texts].reshape(-1, 1)).to(self._scores.device))
        if adjust is None:
            return best
        logs = self._logits.log_softmax(-1)
        adjust(logs)
        return self._best(logs, logs.new_zeros(len(logs), 1))

    @property
    def num_candidates(self) -> int:
        """Continuations of a beam that are kept: of twice as many as there are beams, enough do not end."""
        return min(2 * self._scores.shape[1], self.model.spec.vocab_size)

    def _compute(self, tokens: Int[Tensor, "B 1"], state: State) -> Tensor:
        if self._any_goes_on_from_another or recording() is not None:
            state.targets.copy_rows(self._sources, self._starts)
        self._logits = super()._compute(tokens, state).float()
        return self._best(self._logits, self._logits.logsumexp(-1, keepdim=True))

    def _best(self, scores: Float[Tensor, "B V"], total: Float[Tensor, "B 1"]) -> Float[Tensor, "texts 3 N"]:
        """The likeliest continuations of each text, where `scores - total` are log-probabilities."""
        allowed = scores if self._suppressed is None else scores + self._suppressed
        if self._renormalize:  # where nothing is left, nothing becomes likely
            total = allowed.logsumexp(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        best, ids = allowed.topk(self.num_candidates)
        logs = best - total
        texts, width = self._scores.shape
        totals = (self._scores[..., None] + logs.view(texts, width, -1)).flatten(1)
        totals, places = totals.topk(min(2 * width, totals.shape[1]))
        chosen = ids.float().view(texts, -1).gather(1, places)
        return torch.stack((totals, places.float(), chosen), dim=1)
