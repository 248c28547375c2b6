"""Reading the tokens of one text: in passes of any size, or by recorded steps, which give the same bits however cut.

A deterministic model computes nothing but recorded steps. Their native operations compute each row by itself, in one
order, so that its bits depend neither on the other rows nor on how many there are. Of several tokens of one text each
is a row of a step: all write to places of their own in one cache, and none sees a later one. A state that cannot share
its memory like this, that of a recurrence or of a window that is full, is read token by token.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.generate.step import DecodeStep, is_native
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.products import max_rows
from archetype.nn.cache import State

LANES = 16  # of the largest vectors that any kernel has


class TextReader:
    """Reads one text, piece by piece.

    Args:
        model: in evaluation mode.
        state: of the text, one row; the attribute is the state after what was read.
        num_read: tokens that it has read.
    """

    def __init__(self, model: GenerativeModel, state: State, num_read: int = 0) -> None:
        self.model, self.state, self.num_read = model, state, num_read

    @torch.inference_mode()
    def __call__(self, tokens: list[int], last_only: bool = False) -> Float[Tensor, "t V"]:
        """Logits after each of the next tokens, or after the last."""
        self.num_read += len(tokens)
        state = self.state.narrow(self.num_read)  # nothing is written beyond, nor looked at
        output = self.model(torch.tensor([tokens], device=self.model.device), state, last_only=last_only)
        self.state = output.state
        logits: Tensor = output.logits[0]
        return logits


class StepReader(TextReader):
    """Reads texts by steps of 1, 2, 4, 8, ... tokens in one row's memory, each of which is recorded once."""

    def __init__(self, model: GenerativeModel, state: State, num_read: int = 0) -> None:
        super().__init__(model, state, num_read)
        self._steps: dict[tuple[int, bool], DecodeStep] = {}

    @torch.inference_mode()
    def begin(self, state: State, num_read: int) -> None:
        """Go on from what another state has read."""
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

    def _step(self, piece: list[int], with_logits: bool) -> Tensor:
        """Read a piece; where the step has more rows, they are its last token once more."""
        count = len(piece)
        rows = 1 << (count - 1).bit_length()
        if (step := self._steps.get((rows, with_logits))) is None:
            step = DecodeStep(self.model, self.state.shared(rows), with_logits=with_logits)
            self._steps[rows, with_logits] = step
        places = torch.arange(rows).clamp(max=count - 1)
        step.state.lengths.copy_(self.num_read + places)
        return step(torch.tensor(piece)[places, None])[:count]


def reads_by_steps(model: GenerativeModel) -> bool:
    """Whether texts are read by steps; one whose rotation follows its length is always read whole and alone."""
    return model.is_deterministic and not model.spec.follows_length


def num_places(model: GenerativeModel, length: int) -> int:
    """Places of a state for a text of that length, at least.

    Where a kernel reads all places, also those that hold nothing, the order of its sums follows the number of whole
    vectors: so a deterministic model's states have no others.
    """
    return -(-length // LANES) * LANES if model.is_deterministic else length


@torch.inference_mode()
def make_deterministic(model: GenerativeModel) -> None:
    """Have an engine's logits after each token of a text depend on that text alone, to the bit.

    So they are the same in company of others, after a beginning that another text has left, in whatever pieces a prompt
    is read, with a draft or without.

    Raises:
        SpecError: a step of the model, which is tried here, has an operation whose bits may depend on other rows.
    """
    if not is_native(model):
        cause = f"there are no native kernels for {str(model.dtype).removeprefix('torch.')} on {model.device.type} here"
        remedy = "use float32 or bfloat16 on a processor with its kernels, or leave it out"
        raise SpecError("deterministic", cause, remedy)
    model.is_deterministic = True
    try:
        state = model.empty_state(2, 2, 2) if isinstance(model, EncoderDecoder) else model.new_state(2, 2)
        DecodeStep(model, state)(torch.zeros(2, 1, dtype=torch.long))
    except SpecError:
        model.is_deterministic = False
        raise
