"""Optimizer state as named tensors, for checkpoints."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from archetype.training.master_weights import float32_weights


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state as tensors named like `blocks.0.mixer.q.weight:exp_avg`.

    A tensor subclass, such as an 8-bit state, is stored as its inner tensors: `blocks.0.mixer.q.weight:exp_avg.codes`.
    """
    return {
        f"{name}:{key}{part}": tensor
        for name, parameter in float32_weights(model, optimizer).items()
        for key, value in optimizer.state.get(parameter, {}).items()
        for part, tensor in _parts(value)
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Restore the state that `optimizer_tensors` returned, tensor by tensor."""
    parameters = float32_weights(model, optimizer)
    on_device = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    for name, value in tensors:
        path, _, key = name.rpartition(":")
        parameter = parameters[path]
        if "." in key:
            _restore_part(optimizer, parameter, key, value)
        else:  # torch keeps `step` on the host, except for fused optimizers
            stays = key == "step" and parameter not in on_device
            optimizer.state[parameter][key] = value if stays else value.to(parameter.device)


def _parts(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not hasattr(value, "__tensor_flatten__") or hasattr(value, "device_mesh"):  # a DTensor is saved as one
        return iter([("", value)])
    return ((f".{name}", getattr(value, name)) for name in value.__tensor_flatten__()[0])


def _restore_part(optimizer: torch.optim.Optimizer, parameter: Tensor, path: str, value: Tensor) -> None:
    # an inner tensor of an 8-bit state; torchao would create the state at the first step, so it is created here
    state, (key, part) = optimizer.state[parameter], path.split(".")
    if key not in state:
        state[key] = optimizer._new_buffer(parameter, key == "exp_avg")  # type: ignore[attr-defined]
    getattr(state[key], part).copy_(value)
