"""Weights in bfloat16, with masters in float32 that the optimizer changes (Micikevicius 2017, section 3.1)."""

from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights(torch.optim.Optimizer):
    """An optimizer of float32 masters, whose bfloat16 copies the model computes with.

    A gradient goes to its master, in float32, as soon as it is complete, so that micro-batches add up without loss.

    Args:
        model: in float32; its parameters become bfloat16.
        optimizer: of the parameters as they were, which become the masters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.masters = optimizer, dict(model.named_parameters())
        self.state = optimizer.state
        self.copies: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for name, master in module.named_parameters(recurse=False):
                setattr(module, name, self._copy_of(master))

    def _copy_of(self, master: nn.Parameter) -> nn.Parameter:
        if master not in self.copies:
            copy = nn.Parameter(master.detach().bfloat16(), master.requires_grad)
            if master.requires_grad:
                copy.register_post_accumulate_grad_hook(lambda copy: _move_gradient(copy, master))
            self.copies[master] = copy
        return self.copies[master]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step of the masters, and round them to their copies."""
        self.optimizer.step()
        for master, copy in self.copies.items():
            copy.copy_(master)


def _move_gradient(copy: Tensor, master: nn.Parameter) -> None:
    assert copy.grad is not None
    gradient = copy.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    copy.grad = None


def float32_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that an optimizer changes, by name: masters, or the model's own."""
    return optimizer.masters if isinstance(optimizer, MasterWeights) else dict(model.named_parameters())
