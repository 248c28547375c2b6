"""State of a batch of sequences between forward passes: one `LayerState` per layer.

A forward pass updates the state in place: continue with `output.state`, and copy it with `State.select` first if two
continuations are wanted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from archetype.nn.cache import CrossKVCache
from archetype.nn.context import Lengths
from archetype.nn.layer_state import EMPTY_SLOT, LayerState


@dataclass
class BlockState(LayerState):
    """State of a block whose cross-attention or feed-forward part has a state as well.

    In beam search, `rows_per_source` consecutive rows of the batch share the keys and values of one source, and are
    selected and inserted together.
    """

    mixer: LayerState | None = None
    cross: CrossKVCache | None = None  # keys and values of the source (None: the block has no cross-attention)
    feedforward: LayerState | None = None
    rows_per_source: int = 1  # rows of the batch that share one source

    @property
    def can_shorten(self) -> bool:
        return self.cross is None and all(state.can_shorten for state in self._own().values())

    def select(self, rows: Int[Tensor, "rows"]) -> "BlockState":
        # with cross-attention, `rows` must contain all rows of a source or none
        return self._with(lambda state: state.select(rows), self.cross and self.cross.select(self._sources(rows)))

    def insert(self, rows: Int[Tensor, "rows"], other: LayerState) -> None:
        assert isinstance(other, BlockState)
        for name, state in self._own().items():
            state.insert(rows, other._own()[name])
        if self.cross is not None and other.cross is not None:
            self.cross.insert(self._sources(rows), other.cross)

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        # cross-attention is not copied: a row and the row that it copies from must have the same source text
        for state in self._own().values():
            state.copy_rows(sources, starts, ends)

    def to(self, dtype: torch.dtype) -> "BlockState":
        # `cross` keeps its data type
        return self._with(lambda state: state.to(dtype), self.cross)

    def narrow(self, slots: int) -> "BlockState":
        # `cross` has slots of source tokens, not of the sequence
        return self._with(lambda state: state.narrow(slots), self.cross)

    def rows(self, start: int, stop: int) -> "BlockState":
        # with cross-attention, from the first row of a source to the last row of a source
        each = self.rows_per_source
        return self._with(
            lambda state: state.rows(start, stop), self.cross and self.cross.rows(start // each, stop // each)
        )

    def _with(self, change: Callable[[LayerState], LayerState], cross: CrossKVCache | None) -> "BlockState":
        # a copy in which all states but `cross` are changed
        states: dict[str, Any] = {name: change(state) for name, state in self._own().items()}
        return replace(self, cross=cross, **states)

    def _own(self) -> dict[str, LayerState]:
        states = {"mixer": self.mixer, "feedforward": self.feedforward}
        return {name: state for name, state in states.items() if state is not None}

    def _values(self) -> Iterator[tuple[str, LayerState]]:
        yield from self._own().items()
        if self.cross is not None:
            yield "cross", self.cross

    def _sources(self, rows: Int[Tensor, "rows"]) -> Int[Tensor, "sources"]:
        # the index of a source is the index of its first row, divided by the rows per source
        return rows[:: self.rows_per_source] // self.rows_per_source


def with_source(state: LayerState, cross: CrossKVCache, rows_per_source: int = 1) -> BlockState:
    """Return the state of a block with the keys and values of its source added."""
    block = state if isinstance(state, BlockState) else BlockState(state)
    return replace(block, cross=cross, rows_per_source=rows_per_source)


@dataclass
class State:
    """State of a batch of sequences: the current length of each sequence, and one state per layer."""

    lengths: Lengths
    layers: list[LayerState]
    capacity: int  # longest sequence that fits, in tokens
    whole: "State | None" = None  # the full state, if this is a narrowed view

    def select(self, rows: Int[Tensor, "rows"]) -> "State":
        """Return a copy of the given rows, in that order. A row may be repeated."""
        return State(self.lengths[rows], [layer.select(rows) for layer in self.layers], self.capacity)

    def insert(self, rows: Int[Tensor, "rows"], other: "State") -> None:
        """Overwrite rows of the batch with the rows of `other`, whose capacity must not be larger."""
        self.lengths[rows] = other.lengths
        for layer, source in zip(self.layers, other.layers, strict=True):
            layer.insert(rows, source)

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"]) -> None:
        """Copy the states of rows to other rows of the same length. Takes the arguments of `LayerState.copy_rows`."""
        for layer in self.layers:
            layer.copy_rows(sources, starts, self.lengths)

    def narrow(self, slots: int) -> "State":
        """Return a view of the first `slots` slots of each buffer, in the same memory."""
        layers = [layer.narrow(slots) for layer in self.layers]
        return State(self.lengths, layers, min(slots, self.capacity), whole=self.whole or self)

    def rows(self, start: int, stop: int) -> "State":
        """Return a view of the rows from `start` to `stop` (exclusive), in the same memory."""
        return State(self.lengths[start:stop], [layer.rows(start, stop) for layer in self.layers], self.capacity)

    def num_shared(self, length: int) -> int:
        """Return how many tokens after the first `length` can be processed in one pass as `shared` rows (>= 1)."""
        return min((layer.num_shared(length) for layer in self.layers), default=EMPTY_SLOT)

    def shared(self, count: int) -> "State":
        """Return a view of one row as `count` rows, one for each new token: row n is n tokens longer than row 0."""
        lengths = self.lengths + torch.arange(count, device=self.lengths.device)
        return State(lengths, [layer.shared(count) for layer in self.layers], self.capacity)

    @property
    def targets(self) -> "State":
        """The state without cross-attention. Its rows can be copied individually."""
        layers = [replace(layer, cross=None) if isinstance(layer, BlockState) else layer for layer in self.layers]
        return State(self.lengths, layers, self.capacity)

    def advance(self, lengths: Lengths) -> "State":
        """Return the state with its lengths set to `lengths`. A narrowed view returns the full state."""
        state = self.whole or self
        return State(lengths, state.layers, state.capacity)

    @property
    def can_shorten(self) -> bool:
        return all(layer.can_shorten for layer in self.layers)

    def shorten(self, length: int) -> "State":
        """Return a view of the state after the first `length` tokens of each sequence. Requires `can_shorten`."""
        return State(torch.full_like(self.lengths, length), self.narrow(length).layers, length)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)
