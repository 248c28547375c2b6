"""The learning rate as a function of the step."""

import math

from archetype.train.recipe import Cosine


def learning_rate(schedule: Cosine, peak: float, step: int, steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0, of `steps`."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    progress = (step - schedule.warmup) / max(1, steps - 1 - schedule.warmup)
    share = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return peak * (schedule.final + (1 - schedule.final) * share)
