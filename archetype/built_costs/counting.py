"""Measurements of a module on the meta device: parameters, FLOPs of a pass, and bytes that autograd saves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from archetype.cost.formula import Counts, Formula, constant
from archetype.cost.work import TrainingWork
from archetype.errors import SpecError
from archetype.models.block.spec import Block
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.spec.base import Spec

META = torch.device("meta")


class Layer(NamedTuple):
    """The layer whose parts are counted. The module of a part may depend on the layer's place."""

    block: Block
    place: Place


_layer: ContextVar[Layer | None] = ContextVar("the layer whose parts are counted", default=None)


@contextmanager
def counted_in(layer: Layer) -> Iterator[None]:
    """Count parts as if they belonged to this layer of a stack."""
    before = _layer.set(layer)
    try:
        yield
    finally:
        _layer.reset(before)


def counted_layer() -> Layer | None:
    """Return the layer whose parts are counted; None for a part outside a model."""
    return _layer.get()


def place_for(d: Formula) -> Place:
    """Return the place of a part that reads vectors of `d` features, in the layer that is counted."""
    layer = _layer.get()
    return Place(d.value) if layer is None else replace(layer.place, d_model=d.value, vocab_size=0)


def on_meta(build: Callable[[], nn.Module | None]) -> nn.Module:
    with META:
        module = build()
    assert module is not None
    return module


def context_of(x: Tensor, lengths: Tensor | None = None) -> ForwardContext:
    """Return a forward context for these vectors, with token id 0 everywhere."""
    return replace(ForwardContext.of(x, lengths), tokens=torch.zeros(x.shape[:2], dtype=torch.long, device=META))


def by_child(module: nn.Module) -> Counts:
    counts = {name: total(child) for name, child in module.named_children()}
    return counts | {name: constant(p.numel()) for name, p in module.named_parameters(recurse=False)}


def total(module: nn.Module) -> Formula:
    return constant(sum(parameter.numel() for parameter in module.parameters()))


class _Numbers(TorchDispatchMode):
    # lets a module read values on the meta device, for example by `.item()`: each is 1
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip this mode, torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device == META:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


class _FlopCounter(_Numbers):
    # torch's FlopCounterMode hooks the modules of all threads, including those of a server; this counts one thread
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = super().__torch_dispatch__(func, types, args, kwargs)
        count = flop_registry.get(func._overloadpacket)
        self.total += 0 if count is None else count(*args, **(kwargs or {}), out_val=output)
        return output


def flops_of(run: Callable[[], Any], part: Spec) -> Formula:
    counter = _FlopCounter()
    try:
        with torch.no_grad(), counter:
            run()
    except RuntimeError as error:
        if not isinstance(error, NotImplementedError) and "meta" not in str(error).lower():
            raise
        cause = f"cannot be counted on the meta device: {str(error).partition(chr(10))[0]}"
        raise SpecError(type(part).__name__, cause, "register a cost: archetype.register(..., cost=COST)") from None
    return constant(counter.total)


def saved_by(run: Callable[[], Any], module: nn.Module, work: TrainingWork) -> int:
    """Return the bytes of the tensors that autograd saves, without parameters, counting each storage once."""
    parameter_storages = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in parameter_storages:
            saved.setdefault(storage, tensor.detach())
        return tensor

    enabled = work.compute_dtype == "bfloat16"  # otherwise autocast has no effect
    with (
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=enabled),
        _Numbers(),  # type: ignore[no-untyped-call]
    ):
        run()
    return sum(tensor.numel() * tensor.itemsize for tensor in saved.values())
