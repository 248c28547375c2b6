"""Everything that a training loop works on."""

from dataclasses import dataclass
from typing import Any, Self

import torch

import archetype
from archetype import spec as specs
from archetype.models import Model
from archetype.runs import checkpoints
from archetype.runs.directory import Run
from archetype.tokenizers import Tokenizer
from archetype.training.metrics import Saved
from archetype.training.objectives.base import Objective
from archetype.training.optimizers import optimizer_tensors
from archetype.training.recipe import Recipe


@dataclass
class TrainState:
    """The state of a run in memory; `step` counts the optimizer steps taken."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer | None
    objective: Objective
    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0

    @classmethod
    def build(cls, run: Run, recipe: Recipe, tokenizer: Tokenizer | None, objective: Objective, model: Model) -> Self:
        """The state before the first step, with a new optimizer."""
        return cls(run, recipe, tokenizer, objective, model.train(), recipe.optimizer.build(model))

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
