"""Learning-rate schedules that a recipe can select by `kind`."""

import math
from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from archetype.settings.training import WarmupSteps
from archetype.spec.kinds import Part, part

Ratio = Annotated[float, Field(ge=0, le=1)]


class Schedule(Part):
    @abstractmethod
    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        """Return the learning rate of a step (0 ... num_steps - 1); `peak` is the optimizer's learning rate."""


class WarmUp(Schedule):
    """Base of schedules with linear warm-up."""

    warmup_steps: WarmupSteps = 100

    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        # step + 1: the first step has a rate above 0
        if step < self.warmup_steps:
            return peak * (step + 1) / self.warmup_steps
        return peak * self.ratio(step, num_steps)

    @abstractmethod
    def ratio(self, step: int, num_steps: int) -> float:
        """Return the learning rate after warm-up, as a fraction of the peak."""

    def progress(self, step: int, first: float, num_steps: int) -> float:
        """Return the progress of a decay, from 0 at step `first` to 1 at the last step of the run."""
        return min(1.0, max(0.0, (step - first) / max(1, num_steps - 1 - first)))


@part
class Cosine(WarmUp):
    """Linear warm-up, then half a cosine down to `min_lr_ratio` of the peak (Loshchilov 2016).

    Attributes:
        min_lr_ratio: final learning rate as a fraction of the peak.
    """

    kind: Literal["cosine"] = "cosine"
    min_lr_ratio: Ratio = 0.1

    def ratio(self, step: int, num_steps: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress(step, self.warmup_steps, num_steps)))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine


@part
class Linear(WarmUp):
    """Linear warm-up, then linear decay to `min_lr_ratio` of the peak (Devlin 2018).

    Attributes:
        min_lr_ratio: final learning rate as a fraction of the peak.
    """

    kind: Literal["linear"] = "linear"
    min_lr_ratio: Ratio = 0.0

    def ratio(self, step: int, num_steps: int) -> float:
        return 1 - (1 - self.min_lr_ratio) * self.progress(step, self.warmup_steps, num_steps)


@part
class WarmupStableDecay(WarmUp):
    """Linear warm-up, constant peak for most of the run, and decay at its end (Hu 2024, section 4).

    Attributes:
        decay_fraction: fraction of all steps in the decay.
        decay_shape: shape of the decay; one_minus_sqrt is from Hägele 2024.
        min_lr_ratio: final learning rate as a fraction of the peak.
    """

    kind: Literal["wsd"] = "wsd"
    decay_fraction: Ratio = 0.2
    decay_shape: Literal["linear", "cosine", "one_minus_sqrt"] = "one_minus_sqrt"
    min_lr_ratio: Ratio = 0.0

    def ratio(self, step: int, num_steps: int) -> float:
        first = num_steps * (1 - self.decay_fraction)
        if self.decay_fraction and num_steps > 1:
            first = min(first, num_steps - 2)  # a decay needs two steps: its first step still has the peak
        first = max(float(self.warmup_steps), first)
        progress = self.progress(step, first, num_steps)
        left = {
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "one_minus_sqrt": 1 - math.sqrt(progress),
        }[self.decay_shape]
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * left


@part
class InverseSquareRoot(WarmUp):
    """Linear warm-up, then decay with the inverse square root of the step (Vaswani 2017, equation 3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"

    def ratio(self, step: int, num_steps: int) -> float:
        return math.sqrt(max(1, self.warmup_steps) / (step + 1))


@part
class Constant(WarmUp):
    """Linear warm-up, then a constant learning rate."""

    kind: Literal["constant"] = "constant"

    def ratio(self, step: int, num_steps: int) -> float:
        return 1.0


@part
class ExponentialRise(Schedule):
    """Exponential rise from `min_lr_ratio` of the peak to the peak, for range tests (Smith 2015).

    Attributes:
        min_lr_ratio: first learning rate as a fraction of the peak.
    """

    kind: Literal["exponential_rise"] = "exponential_rise"
    min_lr_ratio: Annotated[float, Field(gt=0, le=1)] = 1e-6

    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        return float(peak * self.min_lr_ratio ** (1 - step / max(1, num_steps - 1)))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every parameter group, times the group's `learning_rate_ratio`."""
    for group in optimizer.param_groups:
        rate = learning_rate * group.get("learning_rate_ratio", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
