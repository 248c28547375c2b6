"""Tensors that a program with a state takes and returns: names, shapes, growth and values before the first token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from archetype.models.build import build_on_meta
from archetype.models.causal import CausalModel
from archetype.nn.layer_state import LayerState

META = torch.device("meta")
FEW = 8  # tokens of the states whose values before the first token are read
LENGTHS = "lengths"  # tokens that each sequence has read
BATCH, SLOTS = "batch", "slots"  # names of sizes


class Rate(NamedTuple):
    """Slots of a tensor that grows: `first` before the first token, and one more for every `tokens_per_slot` tokens."""

    tokens_per_slot: int
    first: int

    def slots(self, tokens: int) -> int:
        return tokens // self.tokens_per_slot + self.first


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the state.

    Attributes:
        name: index of the layer and field of its state, such as `0.keys`.
        shape: shape for one sequence of the context length.
        dtype: data type.
        axis: the dimension with one slot for each token, or for several (None: the size does not depend on tokens).
        rate: growth of that dimension (None: the size is that of the context length, or of a ring).
        is_ring: whether later tokens overwrite the slots of earlier ones.
        initial: values before the first token: one number, or those of one sequence. Slots beyond them are zero.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int | None
    rate: Rate | None
    is_ring: bool
    initial: Tensor

    def zeros(self, batch: int, tokens: int) -> Tensor:
        sizes = [batch, *self.shape[1:]]
        if self.axis is not None and self.rate is not None:
            sizes[self.axis] = self.rate.slots(tokens)
        return torch.zeros(sizes, dtype=self.dtype)

    def entry(self, names: dict[Rate, str]) -> dict[str, Any]:
        """Return the entry of signature.json, given the names of growing sizes."""
        shape: list[str | int] = [BATCH, *self.shape[1:]]
        size = "constant"
        if self.axis is not None:
            size = "ring" if self.is_ring else "grows" if self.rate is not None else "context"
            shape[self.axis] = shape[self.axis] if self.rate is None else names[self.rate]
        growth = {"size": size} | ({} if self.axis is None else {"axis": self.axis})
        entry = {"name": self.name, "input": f"state.{self.name}", "output": f"next_state.{self.name}", "shape": shape}
        return entry | {"type": str(self.dtype).removeprefix("torch.")} | growth | {"initial": self.initial.tolist()}


@dataclass(frozen=True)
class StateLayout:
    """The state of a model as named tensors."""

    tensors: tuple[StateTensor, ...]

    @classmethod
    def of(cls, model: CausalModel) -> "StateLayout":
        """Return the layout for a model, without allocating a state of the context length."""
        length, structure = model.spec.context_length, structure_of(model)
        # an empty state shows which sizes depend on tokens
        longest, empty = (by_name(structure.new_layers(1, size, model.dtype, META)) for size in (length, 0))
        values = by_name(model.new_layers(1, min(FEW, length), model.dtype, model.device))
        tensors = []
        for name, (holder, _, tensor) in longest.items():
            (_, _, none), (_, _, value) = empty[name], values[name]
            if not tensor.numel():
                continue  # such as the n - 1 tokens of a bigram model
            axis = next((index for index, size in enumerate(none.shape) if size != tensor.shape[index]), None)
            is_ring = bool(getattr(holder, "is_ring", False))
            rate = None if axis is None or is_ring else _rate(none.shape[axis], tensor.shape[axis], length)
            initial = _shortest(value.detach().cpu(), axis)
            tensors.append(StateTensor(name, tuple(tensor.shape), tensor.dtype, axis, rate, is_ring, initial))
        lengths = StateTensor(LENGTHS, (1,), torch.long, None, None, False, torch.tensor(0))
        return cls((lengths, *tensors))

    @property
    def rates(self) -> dict[Rate, str]:
        """Names of the sizes that grow."""
        rates = dict.fromkeys(tensor.rate for tensor in self.tensors if tensor.rate is not None)
        return {rate: f"{SLOTS}_{index}" if index else SLOTS for index, rate in enumerate(rates)}

    def fixed(self) -> "StateLayout":
        """Return the layout with every size at the context length."""
        return StateLayout(tuple(replace(tensor, rate=None) for tensor in self.tensors))

    def first(self, batch: int, tokens: int) -> dict[str, Tensor]:
        """Return the state of sequences before their first token; its caches hold `tokens` tokens."""
        state = {}
        for tensor in self.tensors:
            state[tensor.name] = tensor.zeros(batch, tokens)
            inside = (slice(None), *(slice(size) for size in tensor.initial.shape[1:]))
            state[tensor.name][inside] = tensor.initial
        return state

    def entries(self) -> dict[str, Any]:
        """Return the entries of signature.json."""
        slots = {name: rate._asdict() for rate, name in self.rates.items()}
        return {"state": [tensor.entry(self.rates) for tensor in self.tensors], "slots": slots}


def structure_of(model: CausalModel) -> CausalModel:
    """Return the same model without memory, which makes states of any length."""
    return cast(CausalModel, build_on_meta(model.spec).to(model.dtype))


def by_name(layers: Sequence[LayerState]) -> dict[str, tuple[LayerState, str, Tensor]]:
    """Return each tensor of the state, with the object and field that hold it, by the name of a `StateTensor`."""
    pairs = ((f"{index}.", layer) for index, layer in enumerate(layers))
    return {name: place for prefix, layer in pairs for name, place in layer.tensors_by_path(prefix).items()}


def _rate(first: int, slots: int, length: int) -> Rate | None:
    # None: no such rule, so the size is fixed
    rate = Rate(max(1, length // (slots - first)), first)
    return rate if rate.slots(length) == slots else None


def _shortest(value: Tensor, axis: int | None) -> Tensor:
    # one number if all are equal, otherwise without the last slots that are zero
    first = value.flatten()[0]
    if bool((value == first).all()):
        return first
    if axis is None:
        return value
    used = value.movedim(axis, 0).flatten(1).count_nonzero(1).nonzero()
    return value.narrow(axis, 0, int(used[-1]) + 1)
