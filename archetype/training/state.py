"""Everything that a training loop works on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor

import archetype
from archetype.data.batches import Prefetcher
from archetype.models.build import Model
from archetype.runs import checkpoints
from archetype.runs.directory import Run, write_best
from archetype.spec.base import fingerprint
from archetype.tokenizers import Tokenizer
from archetype.training.background_save import BackgroundSave, Files
from archetype.training.block_execution import compile_blocks, recompute_blocks
from archetype.training.evaluate import Evaluation
from archetype.training.master_weights import MasterWeights, float32_weights
from archetype.training.metrics import Saved
from archetype.training.moving_average import MovingAverage
from archetype.training.objectives.base import Batch, Objective
from archetype.training.optimizers import optimizer_tensors, restore_optimizer
from archetype.training.pretrained import set_trainable
from archetype.training.processes import ALONE, Processes
from archetype.training.recipe import Recipe
from archetype.training.verdict import Verdict


@dataclass
class TrainState:
    """The state of a run in memory.

    Attributes:
        step: optimizer steps taken.
        num_evaluated: evaluations made at this step.
        best_loss: the lowest held-out loss so far.
        num_worse: evaluations since then.
        first_loss: of the first step.
        verdict: on how the run ended, where something is wrong with it.
        notes: what to say of the run when it starts.
        prefetcher: prepares the next batches.
        average: of the weights, where the recipe asks for one.
        background: writes the checkpoints.
        processes: that share the work.
        unread: the checkpoint whose tensors a model on the meta device gets when processes have shared it out.
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
    first_loss: float | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    processes: Processes = ALONE
    unread: checkpoints.Checkpoint | None = None
    prefetcher: Prefetcher[Batch] = field(init=False)
    average: MovingAverage | None = None
    background: BackgroundSave = field(default_factory=BackgroundSave)

    def __post_init__(self) -> None:
        on_gpu = self.model.device.type == "cuda"
        self.prefetcher = Prefetcher(self._pinned_batch if on_gpu else self.objective.batch)

    def _pinned_batch(self, step: int) -> Batch:
        """The batch of a step in page-locked memory, from which a GPU copies while it computes."""
        return tuple(tensor.pin_memory() for tensor in self.objective.batch(step))

    @classmethod
    def build(cls, run: Run, recipe: Recipe, tokenizer: Tokenizer | None, objective: Objective, model: Model) -> Self:
        """The state before the first step, with a new optimizer of the parameters that learn."""
        set_trainable(model, recipe)
        if recipe.compile:
            compile_blocks(model)
        recompute_blocks(model, recipe.recompute)
        optimizer = recipe.optimizer.build(model.train())
        if recipe.weights_dtype == "bfloat16":
            optimizer = MasterWeights(model, optimizer)
        state = cls(run, recipe, tokenizer, objective, model, optimizer)
        if recipe.ema_decay is not None:
            state.average = MovingAverage(float32_weights(model, optimizer), recipe.ema_decay)
        return state

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Take over the optimizer's state, the average and the step of a checkpoint, whose weights the model has.

        Where the model is on the meta device, tensors are read later.
        """
        self.step = checkpoint.step
        if self.model.device.type == "meta":
            self.unread = checkpoint
            return
        restore_optimizer(self.model, self.optimizer, checkpoint.optimizer())
        if self.average is not None and checkpoint.average_file is not None:
            self.average.restore(load_file(checkpoint.average_file))

    def remember(self, lines: list[dict[str, Any]]) -> None:
        """Take up the first loss and the evaluations of a run's earlier part, from its metrics."""
        self.first_loss = next((line["loss"] for line in lines if "loss" in line), None)
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
            weights = self.processes.whole(self.final_weights())
            if self.processes.is_main:
                write_best(self.run, self.model, weights)

    def final_weights(self) -> dict[str, Tensor]:
        """All weights in float32, averaged where the recipe says so: what people are given."""
        average = self.average.tensors if self.average else {}
        return {**self.model.state_dict(), **float32_weights(self.model, self.optimizer), **average}

    def provenance(self) -> dict[str, Any]:
        """Hashes of the specification and the data, and versions, for a checkpoint."""
        return {
            "spec": fingerprint(self.model.spec),
            "data": self.objective.fingerprint,
            "versions": {"archetype": archetype.__version__, "torch": torch.__version__},
        }

    def save(self) -> None:
        """Write a checkpoint while the next steps are taken; the one before must have been written."""
        self.processes.together(self.background.wait)
        run, step, provenance, keep = self.run, self.step, self.provenance(), self.recipe.keep_checkpoints
        weights = {**self.model.state_dict(), **float32_weights(self.model, self.optimizer)}
        files = [weights, optimizer_tensors(self.model, self.optimizer)]
        if self.average is not None:
            files.append(self.final_weights())
        if not self.processes.writes_checkpoints:
            files = []

        def write(files: Files) -> None:
            if not files:
                return
            weights, optimizer, *average = files
            self.processes.write_checkpoint(
                run.checkpoints, step, weights, optimizer, provenance, average[0] if average else None, keep
            )

        self.processes.together(lambda: self.background.start(step, files, write))

    def saved(self, wait: bool = False) -> Iterator[Saved]:
        """The checkpoints that were written meanwhile, by all processes; one that could not be written is raised."""
        if self.background.is_pending and (wait or self.processes.all(not self.background.is_writing)):
            yield from map(Saved, self.processes.together(self.background.finished))
