"""Prefill in chunks, decode steps, and verification of draft tokens."""

import logging
from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.errors import SpecError
from archetype.models.build import GenerativeModel
from archetype.models.causal import CausalModel
from archetype.models.output import Output
from archetype.native.arguments import FLOATS
from archetype.native.library import Library, library
from archetype.native.products import max_rows
from archetype.native.recorder import Recorder, Replay
from archetype.nn.state import State

log = logging.getLogger(__name__)
PREFILL_CHUNK = 1024


class DecodeStep:
    """Decode step of a fixed number of rows: newest tokens in, logits of the next tokens out.

    The state is updated in place: its buffers and `lengths` stay the same tensors. On a CPU, the first step is recorded
    as a list of native operations, which later steps replay. Steps that cannot be recorded, are observed or have many
    rows run in torch. Steps of a deterministic model are always recorded, and contain only native operations.

    Args:
        model: in evaluation mode.
        state: state of the rows; `state.insert` replaces the sequence of a row.
        inputs: additional tensors that change between steps, for subclasses that compute more than logits.
        with_logits: whether to compute logits; otherwise only the state is updated.

    Attributes:
        replay: the recorded step; None before the first call, or if the step is not recorded.
    """

    def __init__(
        self, model: GenerativeModel, state: State, inputs: Sequence[Tensor] = (), with_logits: bool = True
    ) -> None:
        self.model, self.state, self.inputs, self.with_logits = model, state, inputs, with_logits
        self._buffers = [tensor for layer in state.layers for tensor in layer.tensors()]
        is_small = len(state.lengths) <= max_rows(model.dtype) or model.is_deterministic
        self._library = library() if is_native(model) and is_small and model.observer is None else None
        self._tokens = torch.empty(len(state.lengths), 1, dtype=torch.long)  # a replay reads tokens at this address
        self.replay: Replay | None = None
        self._result: Tensor | None = None

    @torch.inference_mode()
    def __call__(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """Return the logits after each row's newest token. The next call may overwrite them."""
        if self.replay is not None and self._result is not None:
            self._tokens.copy_(tokens)
            self.replay(torch.get_num_threads())
            return self._result
        if self._library is not None:
            return self._record(tokens, self._library)
        if self.model.is_deterministic:
            raise _not_deterministic("operations of torch (it is observed, or there are no native kernels)")
        longest = int(self.state.lengths.max()) + 1  # attention need not read slots that no row has filled
        return self._compute(self.model, tokens, self.state.narrow(longest))

    def _compute(self, model: GenerativeModel, tokens: Tensor, state: State) -> Tensor:
        output = model(tokens, state, last_only=True, with_logits=self.with_logits)
        self._commit(output)
        return output.logits[:, 0] if self.with_logits else self.state.lengths

    def _record(self, tokens: Tensor, kernels: Library) -> Tensor:
        self._tokens.copy_(tokens)
        # Everything that changes between steps. Other tensors, such as weights, count as constants, and results that
        # depend only on constants are not computed again.
        inputs = [self._tokens, self.state.lengths, *self.inputs, *(buffer for _, _, buffer in self._buffers)]
        with Recorder(kernels, inputs, torch.get_num_threads(), self.model.is_deterministic) as recorder:
            # a copy with the same modules: other threads may compute with the model meanwhile, without recording
            model = copy(self.model)
            model.kernels = recorder
            result = self._compute(model, self._tokens, self.state)
        if recorder.refusal is not None:
            if self.model.is_deterministic:
                raise _not_deterministic(recorder.refusal)
            log.info("decoding is not recorded: %s", recorder.refusal)
            self._library = None
            return result
        self.replay, self._result = recorder.finish([result]), result
        if self.model.is_deterministic and (foreign := self.replay.foreign):
            raise _not_deterministic(foreign[0])
        return result

    def _commit(self, output: Output) -> None:
        # A replay reads the state at the addresses of the recording, but recurrent layers replace their tensors: copy
        # these back. The copies are recorded, too.
        for layer, name, buffer in self._buffers:
            if (updated := getattr(layer, name)) is not buffer:
                buffer.copy_(updated)
                setattr(layer, name, buffer)
        assert output.state is not None
        self.state.lengths.copy_(output.state.lengths)


def _not_deterministic(operation: str) -> SpecError:
    cause = f"a step of this model contains {operation}, so results may depend on other rows"
    return SpecError("deterministic", cause, "load the model without deterministic")


def is_native(model: GenerativeModel) -> bool:
    """Return whether native kernels support the model's decode steps."""
    return model.device.type == "cpu" and model.dtype in FLOATS and library() is not None


@torch.inference_mode()
def verify(model: CausalModel, tokens: list[list[int]], state: State) -> Float[Tensor, "B T V"]:
    """Return the logits after several tokens of each row, and update the state in place.

    Args:
        model: its layer states are full caches, which can be cut back afterwards.
        tokens: the newest token and the draft tokens of each row; rows may differ in length.
        state: state of the rows.
    """
    padded_tokens, lengths = (tensor.to(state.lengths.device) for tensor in padded(tokens))
    longest = padded_tokens.shape[1]
    # One pass reads the newest token and all draft tokens. logits[:, t] predict the token after tokens[:, t], which
    # decides whether draft token t + 1 is accepted. The keys of rejected tokens stay in the cache, but the caller then
    # reduces `lengths`: the mask hides slots from there on, and later tokens overwrite them.
    view = state.narrow(int(state.lengths.max()) + longest)
    logits: Tensor = model(padded_tokens, view, None if bool((lengths == longest).all()) else lengths).logits
    state.lengths += lengths
    return logits


@torch.inference_mode()
def prefill(model: GenerativeModel, prompts: list[list[int]], state: State) -> tuple[Tensor, State]:
    """Prefill sequences of any lengths in chunks. Rows of the state may already hold tokens.

    Returns:
        The logits after each sequence, (rows, V), and the state.
    """
    padded_prompts, lengths = padded(prompts)
    longest = padded_prompts.shape[1]
    filled = int(state.lengths.max())
    logits: Tensor | None = None
    size = longest if model.spec.follows_length else PREFILL_CHUNK
    for start in range(0, longest, size):
        chunk = padded_prompts[:, start : start + size].to(state.lengths.device)
        num_tokens = (lengths - start).clamp(0, chunk.shape[1])
        whole = bool((num_tokens == chunk.shape[1]).all())
        num_tokens = num_tokens.to(chunk.device)
        # Sequences that have ended are padded. All slots that this chunk can write are in the view.
        view = state.narrow(filled + start + chunk.shape[1])
        output = model(chunk, view, None if whole else num_tokens, last_only=True)
        state, last = output.state, output.logits[:, 0]
        # (rows, V): a row keeps the logits of the chunk in which its sequence ended
        logits = last if logits is None else torch.where((num_tokens > 0)[:, None], last, logits)
    assert logits is not None
    return logits, state


def padded(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Pad sequences at the end. Return tokens (B, T) and lengths (B,)."""
    longest = max(map(len, sequences))
    tokens = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(tokens), torch.tensor([*map(len, sequences)])
