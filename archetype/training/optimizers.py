"""Optimizers as a recipe names them by `kind`, and their state as named tensors."""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from archetype.spec.base import NotNegative, Positive, Probability
from archetype.spec.part import Part, part


class Optimizer(Part):
    """Base of all optimizers; `learning_rate` is the peak of the schedule.

    Attributes:
        learning_rate: the schedule's peak.
    """

    learning_rate: Positive = 1e-3

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of the model's parameters that require a gradient."""


@part
class AdamW(Optimizer):
    """Adam with decoupled weight decay, which falls on matrices only (Loshchilov 2017).

    Attributes:
        betas: decay of the means of gradients and of their squares.
        eps: added to the root of the mean square.
        weight_decay: of matrices, times the learning rate.
    """

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.1

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """AdamW with weight decay on matrices, none on norms and biases."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        matrices, vectors = [p for p in trainable if p.dim() >= 2], [p for p in trainable if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state under the parameters' names: `blocks.0.mixer.q.weight:exp_avg`."""
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer the state that `optimizer_tensors` returned."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, key = name.rpartition(":")
        optimizer.state[parameters[parameter]][key] = value
