"""Warnings of a run about itself: settings that cannot do well, and a loss that shows it."""

import math
from collections import deque
from collections.abc import Iterator

from archetype.models.spec import ModelSpec
from archetype.training.metrics import Event, Notice, Step
from archetype.training.state import TrainState

NUM_STEPS = 20  # whose mean loss is judged
MARGIN = 1.1  # by how much it may exceed that of guessing


class Diagnosis:
    """Notices about one run, each of them once.

    Args:
        state: of the run.
    """

    def __init__(self, state: TrainState) -> None:
        self.state, self.guessing = state, guessing_loss(state.model.spec)
        self.losses: deque[float] = deque(maxlen=NUM_STEPS)
        self.first = math.nan
        self.is_said = False

    def at_start(self) -> Iterator[Notice]:
        """Warnings that follow from the recipe."""
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
        """Warnings that follow from the losses of the last steps."""
        if not isinstance(event, Step) or event.skipped:
            return
        self.losses.append(event.loss)
        if len(self.losses) == 1:
            self.first = event.loss
        mean = sum(self.losses) / len(self.losses)
        is_bad = len(self.losses) == NUM_STEPS and mean > max(MARGIN * self.guessing, self.first)
        if is_bad and not self.is_said:
            self.is_said = True
            cause = f"the loss of {NUM_STEPS} steps, {mean:.2f}, is worse than that of guessing, {self.guessing:.2f}"
            effect = f"a learning rate of {self.state.recipe.optimizer.learning_rate:.2g} is too high"
            yield Notice(event.step, f"{cause}: {effect}; stop, and start again with a lower one")


def guessing_loss(spec: ModelSpec) -> float:
    """The loss, in nats, of a model that takes all ids or classes for equally likely."""
    num_choices: int = getattr(spec.head, "num_classes", 0) or getattr(spec, "vocab_size", 1)
    return math.log(num_choices)
