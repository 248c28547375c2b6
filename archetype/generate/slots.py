"""Slots: the rows of one state, of which those in use stand in front; and states of texts that others begin with."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from archetype.generate.reader import StepReader, num_places
from archetype.generate.step import DecodeStep, verify
from archetype.models.build import GenerativeModel
from archetype.models.causal import CausalModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.cache import State

T = TypeVar("T")
MIN_SHARED = 16  # tokens: a shorter beginning is read again


class Slots(Generic[T]):
    """The texts that are written together, each in a row of one state, or in as many rows as it has beams.

    A step has the rows of 1, 2, 4, 8, ... texts, the fewest that hold all of them, so that few shapes are in use. The
    state grows with what is asked for, and never shrinks.

    Args:
        model: in evaluation mode.
        limit: the most texts.
        num_beams: rows of a text, which share its source.
        make_step: the step of some rows of the state, which `current_step` gives.
        new_state: makes the state of so many texts for so many tokens (absent: the model does).

    Attributes:
        texts: what stands in each slot, for the caller: requests, or the numbers of sources.
    """

    def __init__(
        self,
        model: GenerativeModel,
        limit: int,
        num_beams: int = 1,
        make_step: Callable[[GenerativeModel, State], DecodeStep] | None = None,
        new_state: Callable[[int, int], State] | None = None,
    ) -> None:
        self.model, self.limit, self.num_beams, self.make_step = model, limit, num_beams, make_step or DecodeStep
        self.device, self._new_state = model.device, new_state
        self.texts: list[T] = []
        self._source_length = 1
        self.state = self.empty_state(1, 1)
        self._steps: dict[int, DecodeStep] = {}
        self._readers: dict[int, StepReader] = {}

    def empty_state(self, texts: int, capacity: int) -> State:
        """Rows for some texts that are yet to be read."""
        capacity = num_places(self.model, capacity)
        if isinstance(self.model, EncoderDecoder):
            return self.model.empty_state(texts, capacity, self._source_length, self.num_beams)
        return (self._new_state or self.model.new_state)(texts, capacity)

    @property
    def sizes(self) -> tuple[int, int]:
        """The tokens of a row, and of its source, for which there is room."""
        return self.state.capacity, self._source_length

    @torch.inference_mode()
    def reserve(self, texts: int, capacity: int, source_length: int = 1) -> None:
        """Make the state large enough for so many texts, for so many tokens of each, and of each one's source."""
        context, state, known = self.model.spec.context_length, self.state, self._source_length
        texts = max(self._bucket(texts), len(state.lengths) // self.num_beams)
        if texts * self.num_beams == len(state.lengths) and capacity <= state.capacity and source_length <= known:
            return
        if capacity > state.capacity:
            capacity = max(capacity, min(2 * state.capacity, context))
        if source_length > known:
            self._source_length = num_places(self.model, max(source_length, min(2 * known, context)))
        self.state, self._steps, self._readers = self.empty_state(texts, max(capacity, state.capacity)), {}, {}
        if count := len(self.texts):
            self.state.insert(self._rows(range(count)), state.rows(0, count * self.num_beams))

    @torch.inference_mode()
    def put(self, slots: list[int], texts: list[T], state: State) -> None:
        """Let texts that were read have these slots, or the first free ones; `reserve` has made room for them."""
        self.state.insert(self._rows(slots), state)
        for slot, text in zip(slots, texts, strict=True):
            self.texts[slot : slot + 1] = [text]

    def join(self, text: T, state: State) -> None:
        """Give a text that was read the first free slot."""
        self.put([len(self.texts)], [text], state)

    @torch.inference_mode()
    def leave(self, text: T) -> None:
        """Let a text go; the last one takes its slot."""
        slot, last = self.texts.index(text), self.texts.pop()
        if slot < len(self.texts):
            self.state.insert(self._rows([slot]), self.copy(len(self.texts)))
            self.texts[slot] = last
        self.state.lengths[len(self.texts) * self.num_beams :] = 0

    @torch.inference_mode()
    def clear(self, text: T) -> None:
        """Remove numbers that are not finite: what is masked is multiplied by zero, which leaves them as they are."""
        self.state.insert(self._rows([self.texts.index(text)]), self.empty_state(1, self.state.capacity))

    @torch.inference_mode()
    def copy(self, slot: int, length: int | None = None) -> State:
        """The state of a slot's rows, or of its first tokens, as a state of its own."""
        length = int(self.state.lengths[slot * self.num_beams]) if length is None else length
        return copy_rows(self.state, self._rows([slot]), length)

    @torch.inference_mode()
    def current_step(self) -> DecodeStep:
        """The step of the rows in use; those of it without a text stay at their start."""
        slots, used = self._bucket(len(self.texts)), len(self.texts) * self.num_beams
        if slots not in self._steps:
            self._steps[slots] = self.make_step(self.model, self.state.rows(0, slots * self.num_beams))
        self.state.lengths[used:] = 0
        return self._steps[slots]

    @torch.inference_mode()
    def step(self, newest: list[int]) -> Tensor:
        """Logits of each row's next token after its newest, (rows in use, V)."""
        step = self.current_step()
        tokens = torch.tensor(newest + [0] * (len(step.state.lengths) - len(newest)), device=self.device)
        return step(tokens[:, None])[: len(newest)]

    @torch.inference_mode()
    def verify(self, tokens: list[list[int]]) -> Tensor:
        """Logits after each text's newest token and after each of the tokens guessed to follow, (rows in use, T, V)."""
        assert isinstance(self.model, CausalModel)
        if not self.model.is_deterministic:
            return verify(self.model, tokens, self.state.rows(0, len(tokens)))
        logits = []
        for slot, row in enumerate(tokens):
            if slot not in self._readers:
                self._readers[slot] = StepReader(self.model, self.state.rows(slot, slot + 1))
            self._readers[slot].num_read = int(self.state.lengths[slot])
            logits.append(self._readers[slot](row))
        return torch.nn.utils.rnn.pad_sequence(logits, batch_first=True)

    @torch.inference_mode()
    def shorten(self, lengths: list[int]) -> None:
        """Go back to where each text's row had read so many tokens."""
        self.state.lengths[: len(lengths)] = torch.tensor(lengths, device=self.device)

    def _rows(self, slots: Iterable[int]) -> Tensor:
        """All rows of some slots."""
        rows = [slot * self.num_beams + row for slot in slots for row in range(self.num_beams)]
        return torch.tensor(rows, device=self.device)

    def _bucket(self, count: int) -> int:
        """The number of slots of a step for so many texts."""
        return min(self.limit, 1 << max(count - 1, 0).bit_length())


def copy_rows(state: State, rows: Tensor, length: int) -> State:
    """Some rows, or the first tokens of them, as a state of its own."""
    copied = state.narrow(length).select(rows)
    if not copied.can_shorten:
        copied.capacity = state.capacity  # which decides what kind of buffer a window has
    return copied


class PrefixCache:
    """States of texts that were read, for texts that begin with them; the least recently used leave first.

    Args:
        max_bytes: of all states together.
        min_tokens: of a text that is worth remembering.
    """

    def __init__(self, max_bytes: int, min_tokens: int = MIN_SHARED) -> None:
        self.max_bytes, self.min_tokens = max_bytes, min_tokens
        self._states: dict[tuple[int, ...], State] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in [*self._states.values()])  # others may ask while a step adds one

    def put(self, tokens: list[int], state: State) -> None:
        """Remember the state after a text; from then on nobody writes to it."""
        key = tuple(tokens)
        if len(key) < self.min_tokens or state.nbytes > self.max_bytes:
            return
        if state.can_shorten:  # it serves for its beginnings too
            self._states = {other: known for other, known in self._states.items() if key[: len(other)] != other}
        self._states.pop(key, None)
        self._states[key] = state
        while self.nbytes > self.max_bytes:
            del self._states[next(iter(self._states))]

    def get(self, tokens: list[int]) -> State | None:
        """The state after exactly this text."""
        key = tuple(tokens)
        if (state := self._states.pop(key, None)) is not None:
            self._states[key] = state  # now the most recently used
        return state

    def longest(self, tokens: list[int]) -> tuple[int, State | None]:
        """How many tokens of a text, less than all, a remembered state can give, and this state."""
        shared = [(shared_length(tokens, read, state.can_shorten), read) for read, state in self._states.items()]
        count, read = max(shared, default=(0, ()))
        if not count:
            return 0, None
        return count, self.get(list(read))


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of equal tokens with which two texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def shared_length(tokens: list[int], read: tuple[int, ...] | list[int], can_shorten: bool) -> int:
    """How many tokens of a text, at least its last one left to read, the state after `read` can give."""
    count = common_prefix_length(tokens, read)
    if can_shorten:
        count = min(count, len(tokens) - 1)
    elif count < len(read) or count == len(tokens):
        return 0
    return count if count >= MIN_SHARED else 0
