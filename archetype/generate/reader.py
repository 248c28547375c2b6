"""Prefill of one sequence: in chunks of any size, or, for deterministic models, by recorded steps.

A deterministic model computes only recorded steps. Their native operations compute each row separately and in a fixed
order, so the bits of a row depend neither on the other rows nor on their number. Several tokens of one sequence are
processed as the rows of one step: they write to different slots of one cache, and none sees later tokens. If a state
cannot be shared in this way (recurrences, full sliding windows), tokens are processed one by one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.generate.step import DecodeStep, is_native
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.products import max_rows
from archetype.nn.state import State

LANES = 16  # 32-bit lanes of the widest vector registers


class TextReader:
    """Chunked prefill of one sequence.

    Args:
        state: state of the sequence, one row; updated by each chunk.
        num_read: number of tokens that the state already contains.
    """

    def __init__(self, model: GenerativeModel, state: State, num_read: int = 0) -> None:
        self.model, self.state, self.num_read = model, state, num_read

    @torch.inference_mode()
    def __call__(self, tokens: list[int], last_only: bool = False) -> Float[Tensor, "t V"]:
        """Process the next tokens. Return the logits after each of them, or only after the last."""
        self.num_read += len(tokens)
        state = self.state.narrow(self.num_read)  # further slots are neither written nor read
        output = self.model(torch.tensor([tokens], device=self.model.device), state, last_only=last_only)
        self.state = output.state
        return output.logits[0]


class StepReader(TextReader):
    """Prefill of sequences by recorded steps of 1, 2, 4, 8, ... tokens, as rows that share the memory of one row."""

    def __init__(self, model: GenerativeModel, state: State, num_read: int = 0) -> None:
        super().__init__(model, state, num_read)
        self._steps: dict[tuple[int, bool], DecodeStep] = {}

    @torch.inference_mode()
    def begin(self, state: State, num_read: int) -> None:
        """Start from a copy of a state of `num_read` tokens."""
        self.state.insert(torch.tensor([0]), state)
        self.num_read = num_read

    @torch.inference_mode()
    def __call__(self, tokens: list[int], last_only: bool = False) -> Float[Tensor, "t V"]:
        logits, end = [], self.num_read + len(tokens)
        while (left := end - self.num_read) > 0:
            count = min(left, max_rows(self.model.dtype), self.state.num_shared(self.num_read))
            is_wanted = not last_only or count == left
            read = self._step(tokens[-left:][:count], is_wanted)
            if is_wanted:
                logits.append((read[-1:] if last_only else read).clone())
            self.num_read += count
        self.state.lengths.fill_(self.num_read)
        return torch.cat(logits)

    def _step(self, chunk: list[int], with_logits: bool) -> Tensor:
        # Steps have a power of two of rows, so that few are recorded. Spare rows repeat the last token, and write the
        # same numbers to the same slot.
        count = len(chunk)
        num_rows = 1 << (count - 1).bit_length()
        if (step := self._steps.get((num_rows, with_logits))) is None:
            step = DecodeStep(self.model, self.state.shared(num_rows), with_logits=with_logits)
            self._steps[num_rows, with_logits] = step
        offsets = torch.arange(num_rows).clamp(max=count - 1)
        step.state.lengths.copy_(self.num_read + offsets)
        return step(torch.tensor(chunk)[offsets, None])[:count]


def reads_by_steps(model: GenerativeModel) -> bool:
    """Return whether prompts are prefilled by recorded steps: not if rotations depend on the sequence length."""
    return model.is_deterministic and not model.spec.follows_length


def num_slots(model: GenerativeModel, length: int) -> int:
    """Return the number of cache slots needed for a sequence of this length."""
    # A kernel may sum over all slots, including empty ones, and the last numbers that do not fill a vector are summed
    # differently. Deterministic models therefore use whole vectors.
    return -(-length // LANES) * LANES if model.is_deterministic else length


@torch.inference_mode()
def make_deterministic(model: GenerativeModel) -> None:
    """Make the logits of each sequence independent of all other sequences, bit for bit.

    The logits do not depend on the batch, on a cached prefix, on how a prompt is cut into chunks, or on speculation.

    Raises:
        SpecError: a trial step of the model contains an operation whose bits may depend on other rows.
    """
    if not is_native(model):
        cause = f"there are no native kernels for {str(model.dtype).removeprefix('torch.')} on {model.device.type} here"
        remedy = "use float32 or bfloat16 on a processor with its kernels, or remove it"
        raise SpecError("deterministic", cause, remedy)
    model.is_deterministic = True
    try:
        state = model.empty_state(2, 2, 2) if isinstance(model, EncoderDecoder) else model.new_state(2, 2)
        DecodeStep(model, state)(torch.zeros(2, 1, dtype=torch.long))
    except SpecError:
        model.is_deterministic = False
        raise
