"""Initialize tensor shards, read them from a checkpoint, or gather them from all processes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from archetype.errors import CheckpointError
from archetype.io.tensors import Tensors
from archetype.models.build import Model
from archetype.models.initialization import OwnTensor, initialize_tensor, own_tensors


@torch.no_grad()
def materialize(model: Model, device: torch.device, seed: int, weights: Path | None = None) -> None:
    """Replace a model's meta tensors with this process's shards, initialized from `seed` or read from `weights`."""
    tensors = None if weights is None else Tensors.single(weights)
    model.to_empty(device=device)
    # each tensor is drawn or read whole on the host, then cut: values equal a single process's, and memory holds
    # only the shards and one tensor
    for owned in own_tensors(model):
        local(owned.tensor).copy_(own_share(_complete(owned, model, seed, tensors), owned.tensor))


def _complete(owned: OwnTensor, model: Model, seed: int, tensors: Tensors | None) -> Tensor:
    if tensors is None:
        drawn = torch.empty(owned.tensor.shape, dtype=owned.tensor.dtype)
        initialize_tensor(owned._replace(tensor=drawn), model.spec.initialization, model.spec.num_layers, seed)
        return drawn
    if owned.name not in tensors.names() or tensors.shape(owned.name) != tuple(owned.tensor.shape):
        cause = f"is missing in the checkpoint, or does not have the shape {tuple(owned.tensor.shape)}"
        raise CheckpointError(owned.name, cause, "restore the checkpoint")
    return (tensors.mapped if owned.tensor.is_floating_point() else tensors.stored)(owned.name)


def shared_alike(tensors: Iterable[tuple[str, Tensor]], model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Shard the tensors of an optimizer state like their parameters. Tensors of other shapes stay whole."""
    parameters = dict(model.named_parameters())
    for name, tensor in tensors:
        # optimizer tensors are named PARAMETER:FIELD
        parameter = parameters.get(name.rpartition(":")[0])
        if parameter is None:  # another stage has it
            continue
        # moments have their parameter's shape; step counts are scalars and stay whole
        if isinstance(parameter, DTensor) and tensor.shape == parameter.shape and tensor.dim():
            share, layout = own_share(tensor, parameter).clone(), (parameter.device_mesh, parameter.placements)
            tensor = DTensor.from_local(share, *layout, run_check=False, shape=tensor.shape, stride=tensor.stride())
        yield name, tensor


def own_share(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's shard of a whole tensor that is split like `parameter`."""
    if not isinstance(parameter, DTensor):
        return tensor
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, parameter.device_mesh, parameter.placements)
    return tensor[tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))]


def by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by mesh and placement, since a multi-tensor operation accepts only one kind of DTensor."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        groups.setdefault(key, []).append(parameter)
    return [*groups.values()]


def gathered(tensors: dict[str, Tensor], keeps: bool) -> dict[str, Tensor]:
    """Gather whole tensors on the CPU, one at a time. Return nothing if `keeps` is false."""
    result = {}
    for name, tensor in tensors.items():
        # a collective: every process calls it, in the same order, also those that keep nothing
        complete = whole(tensor.detach())
        if keeps:
            result[name] = complete.cpu()
    return result


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
