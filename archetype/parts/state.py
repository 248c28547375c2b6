"""What a layer remembers between passes: one value per layer, passed in and returned.

Nothing hangs on modules. A state's tensors have the batch first, so that rows can be selected, joined and left without
knowing their kind; a row's length lives once, at the model's `State`. Buffers are written in place: the state passed in
is spent, and `State.select` makes a copy where two futures are wanted. Masks come from the positions that `append`
returns, so a mixer need not know whether it reads a full buffer, a ring, or pages. How the states of later parts fit
this interface is set down in docs/decisions.md.
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.parts.span import Span


@dataclass
class LayerState:
    """Base of all layer states: a dataclass of tensors with the batch first."""

    def select(self, rows: Int[Tensor, "N"]) -> "LayerState":
        """A copy of some rows, in that order."""
        return replace(self, **{f.name: getattr(self, f.name).index_select(0, rows) for f in fields(self)})

    def insert(self, rows: Int[Tensor, "N"], other: "LayerState") -> None:
        """Put the N rows of `other`, whose buffers may be shorter, in place of these rows."""
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            inside = tuple(slice(size) for size in theirs.shape[1:])
            mine[(rows, *inside)] = theirs

    def narrow(self, slots: int) -> "LayerState":
        """A view of the first `slots` places; whole where the state's size does not follow the length."""
        return self

    def after(self, view: "LayerState") -> "LayerState":
        """The state after a pass that was given a narrow view of it, and returned `view`."""
        return view

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return sum(getattr(self, f.name).nbytes for f in fields(self))


@dataclass
class KeyValues(LayerState):
    """The key and value of every position: place s holds position s."""

    keys: Float[Tensor, "B K S P"]
    values: Float[Tensor, "B K S P"]

    @classmethod
    def empty(
        cls, batch: int, num_kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> "KeyValues":
        """Zeros, not garbage: a masked place is multiplied by zero, and zero times NaN is NaN."""
        shape = (batch, num_kv_heads, capacity, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    def append(
        self,
        keys: Float[Tensor, "B K T P"],
        values: Float[Tensor, "B K T P"],
        span: Span,
    ) -> tuple[Float[Tensor, "B K S P"], Float[Tensor, "B K S P"], Int[Tensor, "1 S"]]:
        """Write the span's positions; return all that may be looked at, and the position of each."""
        rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
        slots = self.keys.shape[2]
        for buffer, new in ((self.keys, keys), (self.values, values)):
            written, places = new.transpose(1, 2).to(buffer.dtype), span.positions
            if span.counts is not None:  # padding may stand beyond the buffer: it leaves an earlier place as it is
                inside = (places < slots)[:, :, None, None]
                places = places % slots
                written = torch.where(inside, written, buffer[rows, :, places])
            buffer[rows, :, places] = written
        return self.keys, self.values, torch.arange(slots, device=keys.device)[None]

    def narrow(self, slots: int) -> "KeyValues":
        """A view of the first `slots` positions."""
        return KeyValues(self.keys[:, :, :slots], self.values[:, :, :slots])

    def after(self, view: LayerState) -> LayerState:
        """The same buffers: the pass wrote into them."""
        return self


@dataclass
class State:
    """What a model remembers of each row: `lengths` tokens so far, and one state per layer."""

    lengths: Int[Tensor, "B"]
    layers: list[LayerState]
    capacity: int  # the longest row that fits

    def select(self, rows: Int[Tensor, "N"]) -> "State":
        """A copy of some rows: those that stay when others leave, or one row several times over."""
        return State(self.lengths[rows], [layer.select(rows) for layer in self.layers], self.capacity)

    def insert(self, rows: Int[Tensor, "N"], other: "State") -> None:
        """Let the rows of `other` join in place of these rows. `other` must not be longer than this state."""
        self.lengths[rows] = other.lengths
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.insert(rows, theirs)

    def narrow(self, slots: int) -> "State":
        """A view that reads only the first `slots` places of each buffer; writes go to the same memory."""
        return State(self.lengths, [layer.narrow(slots) for layer in self.layers], min(slots, self.capacity))

    def after(self, view: "State") -> "State":
        """The whole state after a pass over a narrow view of it."""
        layers = [whole.after(part) for whole, part in zip(self.layers, view.layers, strict=True)]
        return State(view.lengths, layers, self.capacity)

    def advanced(self, ends: Int[Tensor, "B"], layers: list[LayerState]) -> "State":
        """The state after a pass."""
        return State(ends, layers, self.capacity)

    @property
    def bytes(self) -> int:
        """Bytes allocated by all layers."""
        return sum(layer.bytes for layer in self.layers)
