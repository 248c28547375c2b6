"""Train bfloat16 weights with float32 master weights in the optimizer (Micikevicius 2017, section 3.1)."""

from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights(torch.optim.Optimizer):
    """Optimizer wrapper that updates float32 master weights, while the model computes with bfloat16 copies.

    Args:
        model: float32 model, whose parameters are replaced by bfloat16 copies.
        optimizer: optimizer of the model's original parameters, which become the master weights.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.masters = optimizer, dict(model.named_parameters())
        # shared, so that saving and restoring this optimizer reads the wrapped one's state
        self.state = optimizer.state
        self.copies: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for name, master in module.named_parameters(recurse=False):
                setattr(module, name, self._copy_of(master))

    def _copy_of(self, master: nn.Parameter) -> nn.Parameter:
        # tied parameters keep one copy
        if master not in self.copies:
            copy = nn.Parameter(master.detach().bfloat16(), master.requires_grad)
            if master.requires_grad:
                # moves each gradient to its master as soon as it is complete, in float32, so that micro-batches add up
                # there
                copy.register_post_accumulate_grad_hook(lambda copy: _move_gradient(copy, master))
            self.copies[master] = copy
        return self.copies[master]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the master weights and round them to the bfloat16 copies."""
        self.optimizer.step()
        for master, copy in self.copies.items():
            copy.copy_(master)


def _move_gradient(copy: Tensor, master: nn.Parameter) -> None:
    assert copy.grad is not None
    gradient = copy.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    # the bfloat16 gradient is freed before the next one is computed
    copy.grad = None


def float32_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters that the optimizer updates, by name: master weights if any, or the model's parameters."""
    return optimizer.masters if isinstance(optimizer, MasterWeights) else dict(model.named_parameters())
