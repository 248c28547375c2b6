"""What all optimizers have: the peak of the learning rate, and groups of parameters."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from archetype.spec.base import NotNegative, Positive
from archetype.spec.part import Part
from archetype.training.optimizers.groups import Grouped, ParameterGroup, group_parameters, torch_groups


class Optimizer(Part):
    """Base of all optimizers; `learning_rate` is the peak of the schedule.

    Attributes:
        learning_rate: the schedule's peak.
        weight_decay: of matrices, times the learning rate.
        groups: parameters with a learning rate or a weight decay of their own.
    """

    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    groups: tuple[ParameterGroup, ...] = ()

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of all parameters of the model that are trained."""

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The trained parameters as torch's optimizers take them: weight decay on matrices, none on the rest.

        Raises:
            SpecError: one of `groups` matches no parameter that is trained.
        """
        return torch_groups(group_parameters(model, self.groups, self.weight_decay))

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Bytes of the state of parameters, beside a number or two for each: here two moments in float32."""
        return sum(8 * each.parameter.numel() for each in grouped)

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Bytes that a step takes beside the state, for one parameter after the other."""
        return 0
