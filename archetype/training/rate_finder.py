"""Learning-rate range test: suggest a rate after a short run with an exponentially rising rate."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.parts.adapter.module import install
from archetype.runs.directory import Run
from archetype.training.loop import take_step
from archetype.training.plot import draw_curves
from archetype.training.resolve import ResolvedRecipe
from archetype.training.schedules import ExponentialRise
from archetype.training.setup import first_model
from archetype.training.state import TrainState

LOWEST, HIGHEST, NUM_STEPS = 1e-6, 1.0, 100
SMOOTHING = 0.9  # decay of the mean loss
DIVERGED = 1.5  # times the lowest mean loss: stop


@dataclass(frozen=True)
class RateSweep:
    """Losses of a learning-rate range test.

    Attributes:
        rates: learning rate of each step.
        losses: loss of each step.
        means: bias-corrected exponential moving average of the losses at each step.
        suggested: rate at which this average falls fastest; None if it never falls.
    """

    rates: list[float]
    losses: list[float]
    means: list[float]
    suggested: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def draw(self, file: Path, label: str) -> None:
        logarithms = [math.log10(rate) for rate in self.rates]
        labelled = {"each step": (logarithms, self.losses), "mean": (logarithms, self.means)}
        title = "learning-rate range test" + (f": {self.suggested:.1e}" if self.suggested else "")
        draw_curves(labelled, file, title, "logarithm of the learning rate, base 10", label)


def find_rate(resolved: ResolvedRecipe, device: torch.device, num_steps: int = NUM_STEPS) -> RateSweep:
    """Train with a learning rate that rises from 1e-6 to 1, until the loss diverges (Smith 2015, section 3.3).

    The model is discarded and no file is written.
    """
    model, recipe, _ = first_model(resolved, device)
    if recipe.adapter is not None:
        install(model, recipe.adapter, recipe.seed)
    resolved.objective.prepare(model, recipe.dtype)
    # the schedule multiplies the optimizer's rate by 1e-6 at first, by 1 at the end
    optimizer = recipe.optimizer.replace(learning_rate=HIGHEST)
    schedule = ExponentialRise(min_lr_ratio=LOWEST / HIGHEST)
    recipe = recipe.replace(optimizer=optimizer, schedule=schedule, steps=num_steps, ema_decay=None)
    state = TrainState.build(Run(Path()), recipe, resolved.tokenizer, resolved.objective, model)
    rates: list[float] = []
    losses: list[float] = []
    means: list[float] = []
    mean = 0.0
    for index in range(1, num_steps + 1):
        step = take_step(state)
        if step.skipped:
            break
        mean = SMOOTHING * mean + (1 - SMOOTHING) * step.loss
        rates.append(step.learning_rate)
        losses.append(step.loss)
        means.append(mean / (1 - SMOOTHING**index))  # without the bias of the initial zero
        if means[-1] > DIVERGED * min(means):
            break
    return RateSweep(rates, losses, means, steepest(rates, means))


def steepest(rates: list[float], means: list[float], width: int = 5) -> float | None:
    """Return the rate at which the mean loss falls fastest before its minimum, over `width` steps on either side."""
    last = means.index(min(means)) if means else 0
    if last == 0:
        return None
    slopes = {
        index: means[index + width] - means[index - width]
        for index in range(width, min(last, len(means) - width - 1) + 1)
        if index + width < len(means)
    }
    return rates[min(slopes, key=slopes.__getitem__)] if slopes else rates[last // 2]
