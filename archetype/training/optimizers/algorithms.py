"""Optimizers that torch lacks, or implements only for some devices or dtypes."""

import math
from typing import Any

import torch
from torch import Tensor

from archetype.machine.device import has_bfloat16

TOGETHER = 2**22  # elements orthogonalized in one call: a small matrix alone leaves cores idle
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # odd polynomial, steep at 0 and near 1 up to 1 (Jordan 2024)


class Several(torch.optim.Optimizer):
    """Several optimizers of disjoint parameters, combined into one with common groups and state."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self.optimizers = optimizers
        for optimizer in optimizers:
            optimizer.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()


class LionOptimizer(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each parameter by the learning rate times the sign of its interpolated momentum."""
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum: Tensor = state["exp_avg"]
                update = momentum.lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - rate * group["weight_decay"]).add_(update, alpha=-rate)
                momentum.lerp_(parameter.grad, 1 - beta2)  # after the update, which reads the momentum before it


class MuonOptimizer(torch.optim.Optimizer):
    """Torch optimizer for `Muon`. Unlike torch's Muon, it does not orthogonalize in bfloat16 on every device."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each matrix along its orthogonalized momentum, as much as AdamW would (Liu 2025, equation 4)."""
        for group in self.param_groups:
            # matrices of one shape are stacked into one batched product
            of_one_shape: dict[tuple[Any, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    of_one_shape.setdefault((*parameter.shape, parameter.device), []).append(parameter)
            for parameters in of_one_shape.values():
                count = max(1, TOGETHER // parameters[0].numel())
                for first in range(0, len(parameters), count):
                    self._move(parameters[first : first + count], group)

    def _move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        x = torch.stack([self._update(parameter, group["momentum"], group["nesterov"]) for parameter in parameters])
        for parameter, direction in zip(parameters, orthogonalize(x, group["num_iterations"]), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            # 0.2 sqrt(max(rows, columns)): the root mean square of AdamW's updates
            parameter.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))

    def _update(self, parameter: Tensor, decay: float, nesterov: bool) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"].lerp_(parameter.grad, 1 - decay)
        return parameter.grad.lerp(momentum, decay) if nesterov else momentum


def orthogonalize(x: Tensor, num_iterations: int) -> Tensor:
    """Approximate the nearest orthogonal matrix to each matrix by the Newton-Schulz iteration (Jordan 2024).

    Args:
        x: matrices, (n, rows, columns).
        num_iterations: number of iterations, each with three matrix products.

    Returns:
        Matrices with the same singular vectors, and singular values between about 0.7 and 1.2.
    """
    a, b, c = NEWTON_SCHULZ
    # transposed if tall, so that X Xt has the smaller side
    is_wide = x.shape[-2] <= x.shape[-1]
    x = (x if is_wide else x.mT).to(orthogonal_dtype(x))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # singular values of at most 1
    for _ in range(num_iterations):  # a X + (b X Xt + c (X Xt)^2) X
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if is_wide else x.mT


def orthogonal_dtype(matrices: Tensor) -> torch.dtype:
    """Return bfloat16 (as in torch's Muon) if the device has instructions for it, otherwise float32."""
    device = matrices.device.type
    if device == "meta":  # a model whose training is being planned for this machine
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.bfloat16 if has_bfloat16(device) else torch.float32
