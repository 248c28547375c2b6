"""State that a layer keeps between forward passes, read and updated in place.

The first dimension of every state tensor is the batch, so sequences are selected, inserted and removed without knowing
the kind of state. docs/decisions.md has a table of all kinds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from archetype.nn.context import ForwardContext

S = TypeVar("S", bound="LayerState")
EMPTY_SLOT = 2**40  # position of an empty slot: later than any query, so that the causal mask hides it


@dataclass
class LayerState:
    """Base class of layer states: dataclass of tensors whose first dimension is the batch, or of nested states.

    A field may be None if the state lacks it.
    """

    @property
    def can_shorten(self) -> bool:
        """Whether the state after any prefix of the sequence can be recovered (default: of all nested states)."""
        return self._only_nests and all(value.can_shorten for _, value in self._values())

    def keep(self, **tensors: Tensor) -> None:
        """Replace tensors by the new ones, converted to the state's data types."""
        for name, tensor in tensors.items():
            setattr(self, name, tensor.to(getattr(self, name).dtype))

    def select(self: S, rows: Int[Tensor, "rows"]) -> S:
        """Return a copy of the given rows of the batch, in that order."""
        return self._changed(lambda state: state.select(rows), lambda tensor: tensor.index_select(0, rows))

    def insert(self, rows: Int[Tensor, "rows"], other: "LayerState") -> None:
        """Overwrite N rows of the batch with the N rows of `other`, whose buffers may be shorter."""
        for name, value in self._values():
            source = getattr(other, name)
            if isinstance(value, LayerState):
                value.insert(rows, source)
            elif source.numel():
                # a buffer with fewer slots fills the first slots of this one
                inside = value[(slice(None), *(slice(size) for size in source.shape[1:]))]
                inside.index_copy_(0, rows, source)  # indexed assignment starts threads even for 2,000 numbers

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        """Copy the state of one row of the batch to another, for every row.

        Args:
            sources: the row that each row copies from; a row that others copy from must have itself as source.
            starts: the first slot in which each row may differ from its source.
            ends: the number of slots in use of each row.
        """
        self.insert(torch.arange(len(sources), device=sources.device), self.select(sources))

    def to(self: S, dtype: torch.dtype) -> S:
        return self._changed(lambda state: state.to(dtype), lambda x: x.to(dtype) if x.is_floating_point() else x)

    def narrow(self, slots: int) -> "LayerState":
        """Return a view of the first `slots` slots, or the state itself if its size does not depend on the length."""
        return self._changed(lambda state: state.narrow(slots), lambda x: x) if self._only_nests else self

    def rows(self: S, start: int, stop: int) -> S:
        """Return a view of the rows from `start` to `stop` (exclusive) of the batch."""
        return self._changed(lambda state: state.rows(start, stop), lambda tensor: tensor[start:stop])

    def num_shared(self, length: int) -> int:
        """Return how many tokens after the first `length` can be processed in one pass as `shared` rows (>= 1)."""
        # A state of tensors is limited to 1 unless it can be shortened: a recurrence would overwrite itself.
        if not self._only_nests:
            return EMPTY_SLOT if self.can_shorten else 1
        return min((value.num_shared(length) for _, value in self._values()), default=EMPTY_SLOT)

    def shared(self: S, count: int) -> S:
        """Return a view of one row as `count` rows, in the same memory. Each row writes to a different slot."""
        return self._changed(lambda state: state.shared(count), lambda x: x.expand(count, *x.shape[1:]))

    def tensors(self) -> Iterator[tuple["LayerState", str, Tensor]]:
        """Yield each tensor with the state that holds it and the name of its field."""
        yield from self.tensors_by_path().values()

    def tensors_by_path(self, prefix: str = "") -> dict[str, tuple["LayerState", str, Tensor]]:
        """Return what `tensors` yields by the fields that lead to each tensor, such as `mixer.keys`."""
        tensors: dict[str, tuple[LayerState, str, Tensor]] = {}
        for name, value in self._values():
            if isinstance(value, LayerState):
                tensors |= value.tensors_by_path(f"{prefix}{name}.")
            else:
                tensors[f"{prefix}{name}"] = self, name, value
        return tensors

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for _, value in self._values())

    @property
    def _only_nests(self) -> bool:
        return all(isinstance(value, LayerState) for _, value in self._values())

    def _values(self) -> Iterator[tuple[str, Any]]:
        return ((f.name, value) for f in fields(self) if (value := getattr(self, f.name)) is not None)

    def _changed(self: S, state: Callable[[Any], Any], tensor: Callable[[Tensor], Tensor]) -> S:
        # a copy in which each nested state and each tensor is changed
        values = {name: (state if isinstance(x, LayerState) else tensor)(x) for name, x in self._values()}
        return replace(self, **values)


def opened(module: Any, kind: type[S], x: Tensor, context: ForwardContext, state: LayerState | None) -> tuple[S, S]:
    """Return the state that a pass over `x` updates (a new one if `state` is None), and the state before the pass."""
    state = module.new_state(x.shape[0], 0, x.dtype, x.device) if state is None else state
    assert isinstance(state, kind)
    return state, context.before(state)
