"""Everything that a training loop works on."""

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch

import archetype
from archetype import spec as specs
from archetype.models import Model
from archetype.runs import checkpoints
from archetype.runs.directory import Run, write_best
from archetype.tokenizers import Tokenizer
from archetype.training.evaluate import Evaluation
from archetype.training.metrics import Saved
from archetype.training.objectives.base import Objective
from archetype.training.optimizers import optimizer_tensors
from archetype.training.prefetch import Prefetcher
from archetype.training.pretrained import set_trainable
from archetype.training.recipe import Recipe


@dataclass
class TrainState:
    """The state of a run in memory.

    Attributes:
        step: optimizer steps taken.
        num_evaluated: evaluations made at this step.
        best_loss: the lowest held-out loss so far.
        num_worse: evaluations since then.
        notes: what to say of the run when it starts.
        prefetcher: prepares the next batches.
    """

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer | None
    objective: Objective
    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0
    num_evaluated: int = 0
    best_loss: float = math.inf
    num_worse: int = 0
    notes: tuple[str, ...] = ()
    prefetcher: Prefetcher = field(init=False)

    def __post_init__(self) -> None:
        self.prefetcher = Prefetcher(self.objective.batch, self.model.device.type == "cuda")

    @classmethod
    def build(cls, run: Run, recipe: Recipe, tokenizer: Tokenizer | None, objective: Objective, model: Model) -> Self:
        """The state before the first step, with a new optimizer of the parameters that learn."""
        set_trainable(model, recipe)
        return cls(run, recipe, tokenizer, objective, model.train(), recipe.optimizer.build(model))

    def remember(self, lines: list[dict[str, Any]]) -> None:
        """Take up the evaluations of a run's earlier part, from its metrics."""
        evaluated: dict[int, list[float]] = {}
        for line in lines:
            if "validation_loss" in line:
                evaluated.setdefault(line["step"], []).append(line["validation_loss"])
        self.num_evaluated = len(evaluated.get(self.step, ()))
        self.best_loss, self.num_worse = math.inf, 0
        for losses in evaluated.values():
            self.compare(losses[0])

    def compare(self, loss: float) -> bool:
        """Whether this held-out loss is the lowest so far."""
        is_best = loss < self.best_loss
        self.best_loss, self.num_worse = (loss, 0) if is_best else (self.best_loss, self.num_worse + 1)
        return is_best

    def count(self, evaluation: Evaluation) -> None:
        """Note an evaluation at this step; the first of them is compared, and the best weights are written."""
        self.num_evaluated += 1
        if self.num_evaluated == 1 and self.compare(evaluation.loss) and self.recipe.steps > self.recipe.evaluate_every:
            write_best(self.run, self.model)

    def provenance(self) -> dict[str, Any]:
        """What a checkpoint says of its origin."""
        return {
            "spec": specs.fingerprint(self.model.spec),
            "data": self.objective.fingerprint,
            "versions": {"archetype": archetype.__version__, "torch": torch.__version__},
        }

    def save(self) -> Saved:
        """Write a checkpoint."""
        optimizer = optimizer_tensors(self.model, self.optimizer)
        checkpoints.write(self.run.checkpoints, self.step, self.model.state_dict(), optimizer, self.provenance())
        return Saved(self.step)
