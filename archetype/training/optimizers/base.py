"""Base class of optimizers: peak learning rate, weight decay and parameter groups."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from archetype.errors import SpecError
from archetype.settings.training import LearningRate
from archetype.spec.base import NotNegative
from archetype.spec.kinds import Part
from archetype.training.optimizers.groups import (
    Grouped,
    ParameterGroup,
    group_parameters,
    torch_groups,
    width_ratio,
)


class Optimizer(Part):
    """Base of all optimizers in a recipe.

    Attributes:
        weight_decay: weight decay of matrices, relative to the learning rate.
        groups: parameters with a separate learning rate or weight decay.
    """

    width_exponent: ClassVar[float | None] = (
        1.0  # muP: learning rates of hidden matrices scale with width ** -this; None: not known
    )
    share_of_adamw: ClassVar[float | None] = 1.0  # factor on AdamW's default rate; None: its own default is used
    learning_rate: LearningRate = 1e-3
    weight_decay: NotNegative = 0.0
    groups: tuple[ParameterGroup, ...] = ()

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the torch optimizer for all trainable parameters of the model."""

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return torch parameter groups of the trainable parameters. Errors are those of `group_parameters`."""
        return torch_groups(self.grouped(model))

    def grouped(self, model: nn.Module) -> list[Grouped]:
        """Return the trainable parameters with their settings. With muP, the rates of hidden matrices are scaled."""
        ratio = width_ratio(model)
        if ratio != 1.0 and self.width_exponent is None:
            cause = f"mup does not support {type(self).__name__}"
            raise SpecError("optimizer.kind", cause, "use adamw, muon, lion or adafactor, or another initialization")
        grouped = group_parameters(model, self.groups, self.weight_decay)
        return [
            each._replace(learning_rate_ratio=each.learning_rate_ratio * ratio ** (self.width_exponent or 0.0))
            if each.role == "hidden"
            else each
            for each in grouped
        ]

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Return the bytes of optimizer state, without per-parameter scalars. The default is two float32 moments."""
        return sum(8 * each.parameter.numel() for each in grouped)

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Return the bytes of temporary memory in a step, in addition to the state."""
        return 0
