"""Warnings during a run about unsuitable settings and diverging losses."""

import math
from collections import deque
from collections.abc import Iterator
from statistics import fmean

from archetype.training.metrics import Evaluated, Event, Notice, Step
from archetype.training.stages import stage_at
from archetype.training.state import TrainState
from archetype.training.verdict import NUM_STEPS, has_diverged


class Diagnosis:
    def __init__(self, state: TrainState) -> None:
        self.state, self.guess = state, state.objective.guessing_loss(state.model.spec)
        self.losses: deque[float] = deque(maxlen=NUM_STEPS)
        self.has_warned = False

    def at_start(self) -> Iterator[Notice]:
        recipe, step = self.state.recipe, self.state.step
        yield from (Notice(step, note) for note in self.state.notes)
        warmup = getattr(recipe.schedule, "warmup_steps", 0)
        if step < recipe.steps <= warmup:
            peak = recipe.optimizer.learning_rate
            reached = recipe.schedule.learning_rate(peak, recipe.steps - 1, recipe.steps)
            cause = f"the warm-up of {warmup} steps is not shorter than the run of {recipe.steps}"
            effect = f"the learning rate only rises, to {reached:.2g} of {peak:.2g}"
            yield Notice(step, f"{cause}: {effect}; use fewer warmup_steps")

    def after(self, event: Event) -> Iterator[Notice]:
        """Warn once if the losses show that the run diverges."""
        if isinstance(event, Step) and stage_at(self.state.recipe.stages, event.step - 1)[1] == event.step - 1:
            self.losses.clear()  # a new stage, whose loss may measure something else
            self.state.first_loss = None
        if isinstance(event, Step) and not event.skipped:
            self.losses.append(event.loss)
            if self.state.first_loss is None:
                self.state.first_loss = event.loss
        first, mean = self.state.first_loss, fmean(self.losses) if self.losses else math.nan
        # after NUM_STEPS steps, or earlier at an evaluation
        is_shown = len(self.losses) == NUM_STEPS or (isinstance(event, Evaluated) and not event.on_all)
        if self.state.objective.teacher is not None and math.isfinite(mean):
            return  # a distance from the teacher may begin with 0
        if self.has_warned or not is_shown or first is None or not has_diverged(mean, first, self.guess):
            return
        self.has_warned = True
        beaten = first if self.guess is None or mean <= self.guess else self.guess
        worse = "is worse than guessing" if beaten == self.guess else "is above the first loss"
        cause = f"the loss of {len(self.losses)} steps, {mean:.2f}, {worse}, {beaten:.2f}"
        effect = f"a learning rate of {self.state.recipe.optimizer.learning_rate:.2g} is too high"
        yield Notice(event.step, f"{cause}: {effect}; stop, and start again with a lower learning rate")
