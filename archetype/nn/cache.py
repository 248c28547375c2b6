"""State that layers keep between passes: one value per layer, which the layer reads and updates in place.

Nothing hangs on modules. A state's tensors have the batch first, so that rows can be selected, joined and left without
knowing their kind; a row's length lives once, at the model's `State`. A layer commits what it has read by itself: go
on with `output.state`, and take a copy with `State.select` where two futures are wanted. Masks come from the positions
that `append` returns, so a mixer need not know whether it reads a full buffer, a ring, or pages. docs/decisions.md has
the table of all kinds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.native import fused
from archetype.native.attention import copy_places
from archetype.nn.context import ForwardContext, Lengths

S = TypeVar("S", bound="LayerState")
EMPTY_SLOT = 2**40  # the position of a place that holds nothing: later than every query


@dataclass
class LayerState:
    """Base of all layer states: a dataclass of tensors with the batch first, or of further states."""

    @property
    def can_shorten(self) -> bool:
        """Whether it holds the state after every beginning of the text that was read."""
        return False

    def select(self: S, rows: Int[Tensor, "rows"]) -> S:
        """A copy of some rows, in that order."""
        copies = {
            name: value.select(rows) if isinstance(value, LayerState) else value.index_select(0, rows)
            for name, value in self._values()
        }
        return replace(self, **copies)

    def insert(self, rows: Int[Tensor, "rows"], other: "LayerState") -> None:
        """Put the N rows of `other`, whose buffers may be shorter, in place of these rows."""
        for name, value in self._values():
            source = getattr(other, name)
            if isinstance(value, LayerState):
                value.insert(rows, source)
            elif source.numel():
                inside = value[(slice(None), *(slice(size) for size in source.shape[1:]))]
                inside.index_copy_(0, rows, source)  # assignment by index wakes threads for 2,000 numbers

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        """Let each row hold what its source holds.

        Args:
            sources: of each row, the row that it goes on from, which goes on from itself.
            starts: of each row, places before this one hold the same as its source's already.
            ends: no place of a row or of its source from this one on holds anything.
        """
        self.insert(torch.arange(len(sources), device=sources.device), self.select(sources))

    def to(self: S, dtype: torch.dtype) -> S:
        """The same with floating-point numbers in another type."""
        cast = {
            name: value.to(dtype)
            for name, value in self._values()
            if isinstance(value, LayerState) or value.is_floating_point()
        }
        return replace(self, **cast)

    def narrow(self, slots: int) -> "LayerState":
        """A view of the first `slots` places; whole where the state's size does not follow the length."""
        return self

    def rows(self: S, start: int, stop: int) -> S:
        """A view of the rows from `start` up to `stop`."""
        views = {
            name: value.rows(start, stop) if isinstance(value, LayerState) else value[start:stop]
            for name, value in self._values()
        }
        return replace(self, **views)

    def num_shared(self, length: int) -> int:
        """How many tokens after the first `length` can be read as rows that share this one's memory: at least one."""
        inner = [value for _, value in self._values() if isinstance(value, LayerState)]
        if len(inner) < len([*self._values()]):
            return EMPTY_SLOT if self.can_shorten else 1
        return min((value.num_shared(length) for value in inner), default=EMPTY_SLOT)

    def shared(self: S, count: int) -> S:
        """A view of one row as so many rows in the same memory, which write to places of their own."""
        views = {
            name: value.shared(count) if isinstance(value, LayerState) else value.expand(count, *value.shape[1:])
            for name, value in self._values()
        }
        return replace(self, **views)

    def tensors(self) -> Iterator[tuple["LayerState", str, Tensor]]:
        """Each tensor, with the state and the field that hold it."""
        for name, value in self._values():
            if isinstance(value, LayerState):
                yield from value.tensors()
            else:
                yield self, name, value

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(value.nbytes for _, value in self._values())

    def _values(self) -> Iterator[tuple[str, Any]]:
        return ((f.name, getattr(self, f.name)) for f in fields(self))


@dataclass
class KVCache(LayerState):
    """Two numbers of features for every position: place s holds position s.

    Keys and values of attention; of latent attention the latent and the shared, turned key, as one head each.
    """

    keys: Float[Tensor, "B K S P"]
    values: Float[Tensor, "B K S Q"]

    @property
    def can_shorten(self) -> bool:
        """Each place holds a position of its own."""
        return True

    @classmethod
    def empty(
        cls, batch: int, heads: int, capacity: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "KVCache":
        """Zeros, not garbage: a masked place is multiplied by zero, and zero times NaN is NaN."""
        keys, values = (torch.zeros(batch, heads, capacity, size, dtype=dtype, device=device) for size in sizes)
        return cls(keys, values)

    def append(
        self, keys: Float[Tensor, "B K T P"], values: Float[Tensor, "B K T Q"], context: ForwardContext
    ) -> tuple[Float[Tensor, "B K S P"], Float[Tensor, "B K S Q"], Int[Tensor, "b S"]]:
        """Write the new positions; return all keys and values, and the position of each."""
        for buffer, new in ((self.keys, keys), (self.values, values)):
            write_places(buffer, new, context)
        return self.keys, self.values, self.positions(context.ends)

    def positions(self, ends: Lengths) -> Int[Tensor, "b S"]:
        """The position of each place, where the rows end at `ends`."""
        return torch.arange(self.keys.shape[2], device=ends.device)[None]

    def narrow(self, slots: int) -> "KVCache":
        return KVCache(self.keys[:, :, :slots], self.values[:, :, :slots])

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        """Copy the places in which a row and its source differ."""
        if not copy_places(self.keys, self.values, sources, starts, ends):
            super().copy_rows(sources, starts, ends)


def write_places(buffer: Float[Tensor, "B K S P"], new: Float[Tensor, "B K T P"], context: ForwardContext) -> None:
    """Write each new position into its place of a buffer."""
    if context.num_tokens is None and fused.append(new, buffer, context.positions) is not None:
        return
    rows, slots = torch.arange(new.shape[0], device=new.device)[:, None], buffer.shape[2]
    written, places = new.transpose(1, 2).to(buffer.dtype), context.positions
    if context.num_tokens is not None:  # padding beyond the buffer leaves an earlier place as it is
        inside = (places < slots)[:, :, None, None]
        places = places % slots
        written = torch.where(inside, written, buffer[rows, :, places])
    buffer[rows, :, places] = written


@dataclass
class RingKVCache(KVCache):
    """The keys and values of the newest W positions: place s holds the newest position p with p mod W = s."""

    @property
    def can_shorten(self) -> bool:
        """What has left the window is overwritten."""
        return False

    def append(
        self, keys: Float[Tensor, "B K T P"], values: Float[Tensor, "B K T Q"], context: ForwardContext
    ) -> tuple[Float[Tensor, "B K S P"], Float[Tensor, "B K S Q"], Int[Tensor, "B S"]]:
        """Return what was in the window and the new positions, with the position of each; then keep the newest."""
        starts, ends = context.positions[:, 0], context.ends
        if keys.shape[2] == 1:  # the place that is overwritten has left the window: nothing to join
            if context.num_tokens is None and fused.append(keys, self.keys, context.positions) is not None:
                fused.append(values, self.values, context.positions)
            else:
                self._write(keys, values, starts, ends)
            return self.keys, self.values, self.positions(ends)
        visible = (
            torch.cat((self.keys, keys.to(self.keys.dtype)), dim=2),
            torch.cat((self.values, values.to(self.values.dtype)), dim=2),
            torch.cat((self.positions(starts), context.positions), dim=1),
        )
        self._write(keys, values, starts, ends)
        return visible

    def num_shared(self, length: int) -> int:
        """Those for which there are places yet: later ones overwrite what the first of them are still to see."""
        return max(1, self.keys.shape[2] - length)

    def narrow(self, slots: int) -> "RingKVCache":
        """Itself: where a position stands depends on the whole size."""
        return self

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        """Copy whole rows: a place holds another position in each turn."""
        LayerState.copy_rows(self, sources, starts, ends)

    def _newest(self, ends: Lengths) -> Int[Tensor, "B W"]:
        """Of each place in the buffer the newest position before `ends` that belongs there; negative where none."""
        size = self.keys.shape[2]
        places = torch.arange(size, device=ends.device)
        return ends[:, None] - 1 - (ends[:, None] - 1 - places) % size

    def positions(self, ends: Lengths) -> Int[Tensor, "B W"]:
        """The position of each place; `EMPTY_SLOT` where it holds nothing."""
        newest = self._newest(ends)
        return torch.where(newest < 0, EMPTY_SLOT, newest)

    def _write(self, keys: Tensor, values: Tensor, starts: Lengths, ends: Lengths) -> None:
        step = self._newest(ends) - starts[:, None]  # which of the new ones belongs into each place; negative: none
        for buffer, new in ((self.keys, keys), (self.values, values)):
            index = step.clamp(min=0)[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
            chosen = new.to(buffer.dtype).gather(2, index)
            buffer.copy_(torch.where((step >= 0)[:, None, :, None], chosen, buffer))


@dataclass
class CrossKVCache(LayerState):
    """The keys and values of a source text, which no pass changes, and how many of each row are not padding."""

    keys: Float[Tensor, "B K S P"]
    values: Float[Tensor, "B K S P"]
    num_tokens: Lengths

    def num_shared(self, length: int) -> int:
        """Any: no pass writes here."""
        return EMPTY_SLOT

    @classmethod
    def empty(
        cls, batch: int, heads: int, length: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> "CrossKVCache":
        """Rows without a source: one token of zeros, from which attention gives finite numbers."""
        keys, values = torch.zeros(2, batch, heads, length, size, dtype=dtype, device=device).unbind()
        return cls(keys, values, torch.ones(batch, dtype=torch.long, device=device))


@dataclass
class BlockState(LayerState):
    """The states of a block's contents, where it is not its mixer alone that keeps one.

    Several neighbouring rows, as many for each source, may share the keys and values of a source; they come and go
    together.

    Attributes:
        mixer: its own (None: it keeps nothing).
        cross: the source's keys and values (None: the block looks at no source).
        feedforward: the feed-forward part's own (None: it keeps nothing).
        rows_per_source: how many rows share the keys and values of a source.
    """

    mixer: LayerState | None = None
    cross: CrossKVCache | None = None
    feedforward: LayerState | None = None
    rows_per_source: int = 1

    @property
    def can_shorten(self) -> bool:
        """Whether all contents can be shortened, and no source stands beside them."""
        return self.cross is None and all(state.can_shorten for state in self._own().values())

    def select(self, rows: Int[Tensor, "rows"]) -> "BlockState":
        """A copy of some rows; of a block with a source, of all rows of some sources."""
        own = {name: state.select(rows) for name, state in self._own().items()}
        return self._with(own, self.cross and self.cross.select(self._sources(rows)))

    def insert(self, rows: Int[Tensor, "rows"], other: LayerState) -> None:
        """Put the rows of `other`, all rows of its sources, in place of these."""
        assert isinstance(other, BlockState)
        for name, state in self._own().items():
            state.insert(rows, other._own()[name])
        if self.cross is not None and other.cross is not None:
            self.cross.insert(self._sources(rows), other.cross)

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        """Let each row of the contents hold what its source row holds; they read the same source text."""
        for state in self._own().values():
            state.copy_rows(sources, starts, ends)

    def to(self, dtype: torch.dtype) -> "BlockState":
        """The same with floating-point numbers in another type."""
        return self._with({name: state.to(dtype) for name, state in self._own().items()}, self.cross)

    def narrow(self, slots: int) -> "BlockState":
        """A narrow view of the contents' states; a source stays whole."""
        return self._with({name: state.narrow(slots) for name, state in self._own().items()}, self.cross)

    def rows(self, start: int, stop: int) -> "BlockState":
        """A view of the rows from `start` up to `stop`, all of some sources."""
        own = {name: state.rows(start, stop) for name, state in self._own().items()}
        each = self.rows_per_source
        return self._with(own, self.cross and self.cross.rows(start // each, stop // each))

    def without_source(self) -> "BlockState":
        """The contents' own states, whose rows may be copied one by one."""
        return self._with(self._own(), None)

    def _with(self, own: Mapping[str, LayerState], cross: CrossKVCache | None) -> "BlockState":
        return BlockState(own.get("mixer"), cross, own.get("feedforward"), self.rows_per_source)

    def _own(self) -> dict[str, LayerState]:
        states = {"mixer": self.mixer, "feedforward": self.feedforward}
        return {name: state for name, state in states.items() if state is not None}

    def _values(self) -> Iterator[tuple[str, LayerState]]:
        yield from self._own().items()
        if self.cross is not None:
            yield "cross", self.cross

    def _sources(self, rows: Int[Tensor, "rows"]) -> Int[Tensor, "sources"]:
        return rows[:: self.rows_per_source] // self.rows_per_source


def with_source(state: LayerState, cross: CrossKVCache, rows_per_source: int = 1) -> BlockState:
    """A block's state together with the keys and values of its source."""
    block = state if isinstance(state, BlockState) else BlockState(state)
    return replace(block, cross=cross, rows_per_source=rows_per_source)


@dataclass
class State:
    """The state of a batch of rows: `lengths` tokens so far, and one state per layer."""

    lengths: Lengths
    layers: list[LayerState]
    capacity: int  # the longest row that fits
    whole: "State | None" = None  # of which this is a narrow view

    def select(self, rows: Int[Tensor, "rows"]) -> "State":
        """A copy of some rows: those that stay when others leave, or one row several times over."""
        return State(self.lengths[rows], [layer.select(rows) for layer in self.layers], self.capacity)

    def insert(self, rows: Int[Tensor, "rows"], other: "State") -> None:
        """Let the rows of `other` join in place of these rows. `other` must not be longer than this state."""
        self.lengths[rows] = other.lengths
        for layer, source in zip(self.layers, other.layers, strict=True):
            layer.insert(rows, source)

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"]) -> None:
        """Let rows go on from what others of their length have read; arguments as of `LayerState.copy_rows`."""
        for layer in self.layers:
            layer.copy_rows(sources, starts, self.lengths)

    def narrow(self, slots: int) -> "State":
        """A view that reads only the first `slots` places of each buffer; writes go to the same memory."""
        layers = [layer.narrow(slots) for layer in self.layers]
        return State(self.lengths, layers, min(slots, self.capacity), whole=self.whole or self)

    def rows(self, start: int, stop: int) -> "State":
        """A view of the rows from `start` up to `stop`; writes go to the same memory."""
        return State(self.lengths[start:stop], [layer.rows(start, stop) for layer in self.layers], self.capacity)

    def num_shared(self, length: int) -> int:
        """How many tokens after the first `length` can be read as rows that share one row's memory: at least one."""
        return min((layer.num_shared(length) for layer in self.layers), default=EMPTY_SLOT)

    def shared(self, count: int) -> "State":
        """A view of one row as rows for so many of its next tokens."""
        lengths = self.lengths + torch.arange(count, device=self.lengths.device)
        return State(lengths, [layer.shared(count) for layer in self.layers], self.capacity)

    @property
    def targets(self) -> "State":
        """The state without what belongs to sources, whose rows may therefore be copied one by one."""
        layers = [layer.without_source() if isinstance(layer, BlockState) else layer for layer in self.layers]
        return State(self.lengths, layers, self.capacity)

    def advance(self, lengths: Lengths) -> "State":
        """The state after a pass, whole also where the pass had a narrow view of it; its layers are up to date."""
        state = self.whole or self
        return State(lengths, state.layers, state.capacity)

    @property
    def can_shorten(self) -> bool:
        """Whether it holds the state after every beginning of the texts that were read."""
        return all(layer.can_shorten for layer in self.layers)

    def shorten(self, length: int) -> "State":
        """A view of the state after the first `length` tokens of each row; `can_shorten` says whether there is one."""
        return State(torch.full_like(self.lengths, length), self.narrow(length).layers, length)

    @property
    def nbytes(self) -> int:
        """Bytes allocated by all layers."""
        return sum(layer.nbytes for layer in self.layers)
