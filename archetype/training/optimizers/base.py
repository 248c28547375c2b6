"""The base of all optimizers: the peak of the learning rate, and groups of parameters."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from archetype.errors import SpecError
from archetype.spec.base import NotNegative, Positive
from archetype.spec.kinds import Part
from archetype.training.optimizers.groups import (
    Grouped,
    ParameterGroup,
    group_parameters,
    torch_groups,
    width_ratio,
)


class Optimizer(Part):
    """Base of all optimizers; `learning_rate` is the peak of the schedule.

    Attributes:
        learning_rate: the peak of the schedule.
        weight_decay: of matrices, times the learning rate.
        groups: parameters with a learning rate or a weight decay of their own.
    """

    width_exponent: ClassVar[float | None] = (
        1.0  # with which rates of hidden matrices fall, of muP; None: it does not say
    )
    share_of_adamw: ClassVar[float | None] = 1.0  # of the rate that is chosen for AdamW; None: its own default is
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
        return torch_groups(self.grouped(model))

    def grouped(self, model: nn.Module) -> list[Grouped]:
        """The trained parameters with their settings; those of a wide model of muP learn more slowly."""
        ratio = width_ratio(model)
        if ratio != 1.0 and self.width_exponent is None:
            cause = f"mup has no rates for {type(self).__name__}"
            raise SpecError("optimizer.kind", cause, "use adamw, muon, lion or adafactor, or another initialization")
        grouped = group_parameters(model, self.groups, self.weight_decay)
        return [
            each._replace(learning_rate_ratio=each.learning_rate_ratio * ratio ** (self.width_exponent or 0.0))
            if each.role == "hidden" else each
            for each in grouped
        ]  # fmt: skip

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Bytes of the state of parameters, beside a number or two for each: here two moments in float32."""
        return sum(8 * each.parameter.numel() for each in grouped)

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        """Bytes that a step takes beside the state, for one parameter after the other."""
        return 0
