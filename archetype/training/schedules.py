"""The learning rate as a function of the step, as a recipe names it by `kind`."""

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.spec.part import Part, part


class Schedule(Part):
    """Base of all schedules."""

    @abstractmethod
    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        """The learning rate of an optimizer step.

        Args:
            peak: the optimizer's learning rate.
            step: counted from 0.
            num_steps: how many the whole run takes.
        """


@part
class Cosine(Schedule):
    """A linear rise over `warmup_steps`, then half a cosine down to `min_lr_ratio` of the peak (Loshchilov 2016).

    Attributes:
        warmup_steps: steps of the linear rise.
        min_lr_ratio: the last learning rate, as a share of the peak.
    """

    renamed: ClassVar[dict[str, str]] = {"warmup": "warmup_steps", "final": "min_lr_ratio"}
    kind: Literal["cosine"] = "cosine"
    warmup_steps: Annotated[int, Field(strict=True, ge=0)] = 100
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1

    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        """The learning rate of an optimizer step."""
        if step < self.warmup_steps:
            return peak * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, num_steps - 1 - self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return peak * (self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine)
