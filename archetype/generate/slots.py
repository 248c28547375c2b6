"""Slots for sequences that are decoded together, and the prefix cache."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from archetype.generate.reader import StepReader, num_slots
from archetype.generate.step import DecodeStep, verify
from archetype.models.build import GenerativeModel
from archetype.models.causal import CausalModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.state import State

T = TypeVar("T")
MIN_SHARED = 16  # tokens: a shorter common prefix is computed again


class Slots(Generic[T]):
    """Sequences decoded together, each in one row of a shared state, or in `num_beams` rows for beam search.

    A step has rows for 1, 2, 4, 8, ... sequences, as few as possible, so that few steps are recorded. Slots in use come
    first. The state grows on demand and never shrinks. Methods are called in inference mode.

    Args:
        num_beams: rows of a sequence, which share its source.
        make_step: creates the decode step for some rows of the state (absent: `DecodeStep`).
        new_state: creates a state from the number of sequences and a capacity in tokens (absent: the model creates it).

    Attributes:
        sequences: the sequence in each slot, as the caller identifies it: requests, or indices of sources.
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
        self.sequences: list[T] = []
        self._source_length = 1
        self.state = self.empty_state(1, 1)
        self._steps: dict[int, DecodeStep] = {}
        self._readers: dict[int, StepReader] = {}

    def empty_state(self, count: int, capacity: int) -> State:
        """Return empty rows for this many sequences."""
        capacity = num_slots(self.model, capacity)
        if isinstance(self.model, EncoderDecoder):
            return self.model.empty_state(count, capacity, self._source_length, self.num_beams)
        return (self._new_state or self.model.new_state)(count, capacity)

    @property
    def sizes(self) -> tuple[int, int]:
        # capacity of a row, and of its source, in tokens
        return self.state.capacity, self._source_length

    def reserve(self, num_sequences: int, capacity: int, source_length: int = 1) -> None:
        """Grow the state, if needed, for this many sequences of this many tokens, and for sources of this length."""
        context, state, known = self.model.spec.context_length, self.state, self._source_length
        num_sequences = max(self._bucket(num_sequences), len(state.lengths) // self.num_beams)
        if (
            num_sequences * self.num_beams == len(state.lengths)
            and capacity <= state.capacity
            and source_length <= known
        ):
            return
        if capacity > state.capacity:  # at least doubled, so that a growing sequence is not copied for each token
            capacity = max(capacity, min(2 * state.capacity, context))
        if source_length > known:
            self._source_length = num_slots(self.model, max(source_length, min(2 * known, context)))
        # recorded steps hold addresses in the old state
        self.state, self._steps, self._readers = self.empty_state(num_sequences, max(capacity, state.capacity)), {}, {}
        if count := len(self.sequences):
            self.state.insert(self._rows(range(count)), state.rows(0, count * self.num_beams))

    def put(self, slots: list[int], sequences: list[T], state: State) -> None:
        """Insert prefilled sequences into these slots, or into the first free slots. Call `reserve` first."""
        self.state.insert(self._rows(slots), state)
        for slot, sequence in zip(slots, sequences, strict=True):
            self.sequences[slot : slot + 1] = [sequence]

    def join(self, sequence: T, state: State) -> None:
        """Insert a prefilled sequence into the first free slot; the state may be the row of `begin_in_place`."""
        if self.is_in_place(state):
            self.state.lengths[:1] = state.lengths
            self.sequences.append(sequence)
        else:
            self.put([len(self.sequences)], [sequence], state)

    def begin_in_place(self, prefix: State | None) -> State | None:
        """Return the first row, after a prefix, for a prompt to be read in its place while nothing is decoded.

        None if sequences are decoded, or if the state is more than keys and values of all positions: a recurrence is
        replaced and not written, and a ring of keys is read more slowly than the keys of a prompt in order.
        """
        if self.sequences or self.num_beams > 1 or not self.state.can_shorten:
            return None
        row = self.state.rows(0, 1)
        row.insert(self._rows([0]), self.empty_state(1, 1) if prefix is None else prefix)
        length = row.lengths.clone()
        self.state.lengths[:1] = 0  # the slot is free until a sequence joins
        return row.advance(length)

    def is_in_place(self, state: State) -> bool:
        """Return whether the state is that of `begin_in_place`, and not a copy."""
        ours, theirs = ([x for layer in of.layers for _, _, x in layer.tensors()] for of in (self.state, state))
        return bool(ours) and all(x.data_ptr() == y.data_ptr() for x, y in zip(ours, theirs, strict=True))

    def leave(self, sequence: T) -> None:
        """Remove a sequence. The sequence in the last slot takes its slot."""
        slot, last = self.sequences.index(sequence), self.sequences.pop()
        if slot < len(self.sequences):
            self.state.insert(self._rows([slot]), self.copy(len(self.sequences)))
            self.sequences[slot] = last
        self.state.lengths[len(self.sequences) * self.num_beams :] = 0

    def clear(self, slot: int) -> None:
        """Zero the rows of a slot to remove NaN values, which masks would not hide (0 * NaN = NaN)."""
        self.state.insert(self._rows([slot]), self.empty_state(1, self.state.capacity))

    def copy(self, slot: int, length: int | None = None) -> State:
        """Return a copy of the state of a slot, or of its first `length` tokens."""
        length = int(self.row(slot).lengths) if length is None else length
        return copy_rows(self.state, self._rows([slot]), length)

    def row(self, slot: int) -> State:
        """Return a view of the tokens of a slot, in the same memory."""
        row = self.state.rows(slot * self.num_beams, slot * self.num_beams + 1)
        return row.narrow(int(row.lengths))

    def current_step(self) -> DecodeStep:
        """Return the decode step for the rows in use. Spare rows keep length 0."""
        slots, used = self._bucket(len(self.sequences)), len(self.sequences) * self.num_beams
        if slots not in self._steps:
            self._steps[slots] = self.make_step(self.model, self.state.rows(0, slots * self.num_beams))
        if used < slots * self.num_beams:
            self.state.lengths[used:] = 0
        return self._steps[slots]

    def step(self, newest: list[int]) -> Tensor:
        """Decode one token of each sequence. Return the logits of the next tokens, (rows in use, V)."""
        step = self.current_step()
        tokens = torch.tensor(newest + [0] * (len(step.state.lengths) - len(newest)), device=self.device)
        return step(tokens[:, None])[: len(newest)]

    def verify(self, tokens: list[list[int]]) -> Tensor:
        """Return logits after each sequence's newest token and each of its draft tokens, (rows in use, T, V)."""
        assert isinstance(self.model, CausalModel)
        if not self.model.is_deterministic:
            return verify(self.model, tokens, self.state.rows(0, len(tokens)))
        logits = []
        for slot, sequence in enumerate(tokens):
            # a recorded step reads all tokens of one sequence, as if they were rows
            if slot not in self._readers:
                self._readers[slot] = StepReader(self.model, self.state.rows(slot, slot + 1))
            self._readers[slot].num_read = int(self.state.lengths[slot])
            logits.append(self._readers[slot](sequence))
        return torch.nn.utils.rnn.pad_sequence(logits, batch_first=True)

    def shorten(self, lengths: list[int]) -> None:
        """Shorten each sequence's state to this many tokens."""
        self.state.lengths[: len(lengths)] = torch.tensor(lengths, device=self.device)

    def _rows(self, slots: Iterable[int]) -> Tensor:
        rows = [slot * self.num_beams + row for slot in slots for row in range(self.num_beams)]
        return torch.tensor(rows, device=self.device)

    def _bucket(self, count: int) -> int:
        # the next power of two, but not more than `limit`
        return min(self.limit, 1 << max(count - 1, 0).bit_length())


def copy_rows(state: State, rows: Tensor, length: int) -> State:
    """Return a copy of some rows, or of their first `length` tokens."""
    copied = state.narrow(length).select(rows)
    if not copied.can_shorten:
        copied.capacity = state.capacity  # a sliding window has a ring buffer only if it is shorter than the capacity
    return copied


class PrefixCache:
    """Prefix cache: states of earlier sequences, evicted least recently used first.

    Args:
        max_bytes: total size of all states.
        min_tokens: shortest sequence worth caching.
    """

    def __init__(self, max_bytes: int, min_tokens: int = MIN_SHARED) -> None:
        self.max_bytes, self.min_tokens = max_bytes, min_tokens
        self._states: dict[tuple[int, ...], State] = {}

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in [*self._states.values()])  # a copy, as a step may add one meanwhile

    def takes(self, tokens: list[int], state: State) -> bool:
        """Return whether `put` caches the state after a sequence; ask with a view, before it is copied."""
        return len(tokens) >= self.min_tokens and state.nbytes <= self.max_bytes

    def put(self, tokens: list[int], state: State) -> None:
        """Cache the state after a sequence. The caller must not modify the state afterwards."""
        if not self.takes(tokens, state):
            return
        key = tuple(tokens)
        if state.can_shorten:  # it replaces the states of all prefixes of the sequence
            self._states = {other: known for other, known in self._states.items() if key[: len(other)] != other}
        self._states.pop(key, None)
        self._states[key] = state
        while self.nbytes > self.max_bytes:
            del self._states[next(iter(self._states))]

    def get(self, tokens: list[int]) -> State | None:
        """Return the state after exactly this sequence."""
        key = tuple(tokens)
        if (state := self._states.pop(key, None)) is not None:
            self._states[key] = state  # now the most recently used
        return state

    def longest(self, tokens: list[int]) -> tuple[int, State | None]:
        """Return the length of the longest cached proper prefix of a sequence, and the state that contains it."""
        shared = [(shared_length(tokens, read, state.can_shorten), read) for read, state in self._states.items()]
        count, read = max(shared, default=(0, ()))
        if not count:
            return 0, None
        return count, self.get(list(read))


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


def shared_length(tokens: list[int], read: tuple[int, ...] | list[int], can_shorten: bool) -> int:
    """Return how many tokens of a sequence the state after `read` covers. The last token is always left to compute."""
    count = common_prefix_length(tokens, read)
    if can_shorten:
        count = min(count, len(tokens) - 1)
    elif count < len(read) or count == len(tokens):
        return 0
    return count if count >= MIN_SHARED else 0
