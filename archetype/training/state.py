"""State of a training run in memory."""

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
from archetype.nn.parameter_names import train_only
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
from archetype.training.stages import lines_of_last_stage, names_trained, stage_at
from archetype.training.verdict import Verdict


@dataclass
class TrainState:
    """State of a training run in memory: model, optimizer, data and progress.

    Attributes:
        step: number of optimizer steps taken.
        num_evaluated: number of evaluations at this step.
        best_loss: lowest validation loss so far.
        num_worse: number of evaluations since the lowest validation loss.
        first_loss: training loss of the first step.
        verdict: fault of the finished run; None if it has no fault.
        notes: messages to show when the run starts.
        prefetcher: thread that prepares the next batches.
        average: exponential moving average of the weights; None without `ema_decay`.
        background: background writer of checkpoints.
        stage: index of the stage that was entered last; -1 before the first step.
        unread: checkpoint to load once a model on the meta device has been sharded over processes.
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
    stage: int = -1
    unread: checkpoints.Checkpoint | None = None
    prefetcher: Prefetcher[Batch] = field(init=False)
    average: MovingAverage | None = None
    background: BackgroundSave = field(default_factory=BackgroundSave)

    def __post_init__(self) -> None:
        on_gpu = self.model.device.type == "cuda"
        # pinned memory: copies to the GPU run while the host goes on
        self.prefetcher = Prefetcher(self._pinned_batch if on_gpu else self.objective.batch)
        further = self.model.spec.further_stack
        self.objective.num_further = 0 if further is None else len(further.layers)

    def _pinned_batch(self, step: int) -> Batch:
        return tuple(tensor.pin_memory() for tensor in self.objective.batch(step))

    @classmethod
    def build(cls, run: Run, recipe: Recipe, tokenizer: Tokenizer | None, objective: Objective, model: Model) -> Self:
        """Build the state before the first step, with a new optimizer for the trainable parameters."""
        if objective.teacher is not None:
            objective.teacher.install(model)
        # before the optimizer, which takes trainable parameters only
        set_trainable(model, recipe)
        if recipe.compile:
            compile_blocks(model)
        recompute_blocks(model, recipe.recompute)
        optimizer = recipe.optimizer.build(model.train())
        if recipe.weights_dtype == "bfloat16":
            # after the optimizer, whose float32 parameters become the masters
            optimizer = MasterWeights(model, optimizer)
        state = cls(run, recipe, tokenizer, objective, model, optimizer)
        if recipe.ema_decay is not None:
            state.average = MovingAverage(float32_weights(model, optimizer), recipe.ema_decay)
        return state

    def enter_stage(self) -> None:
        """Freeze all parameters that the next step's stage does not train. They lose their optimizer state."""
        index, _ = stage_at(self.recipe.stages, self.step)
        if index == self.stage:
            return
        self.stage = index
        names = names_trained(self.model, self.recipe, index)
        weights = float32_weights(self.model, self.optimizer)
        train_only(self.model, set(weights) if names is None else names)
        for name, weight in weights.items():
            if names is not None and name not in names:
                self.optimizer.state.pop(weight, None)
        if self.objective.teacher is not None:
            self.objective.teacher.enter(self.recipe.stages[index] if index < len(self.recipe.stages) else None)

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restore step, optimizer state and moving average from a checkpoint, after the weights have been loaded.

        If the model is on the meta device, the tensors are read later.
        """
        self.step = checkpoint.step
        if self.model.device.type == "meta":
            self.unread = checkpoint
            return
        restore_optimizer(self.model, self.optimizer, checkpoint.optimizer())
        if self.average is not None and checkpoint.average_file is not None:
            self.average.restore(load_file(checkpoint.average_file))

    def remember(self, lines: list[dict[str, Any]]) -> None:
        """Restore the first loss and the evaluation history from lines of the metrics file."""
        of_stage = lines_of_last_stage(self.recipe.stages, lines)
        self.first_loss = next((line["loss"] for line in of_stage if "loss" in line), None)
        evaluated: dict[int, list[float]] = {}
        for line in lines:
            if "validation_loss" in line:
                evaluated.setdefault(line["step"], []).append(line["validation_loss"])
        self.num_evaluated = len(evaluated.get(self.step, ()))
        self.best_loss, self.num_worse = math.inf, 0
        # only the first evaluation at a step compares losses; the second is of all validation examples
        for losses in evaluated.values():
            self.compare(losses[0])

    def compare(self, loss: float) -> bool:
        """Record a validation loss. Return whether it is the lowest so far."""
        is_best = loss < self.best_loss
        self.best_loss, self.num_worse = (loss, 0) if is_best else (self.best_loss, self.num_worse + 1)
        return is_best

    def count(self, evaluation: Evaluation) -> None:
        """Count an evaluation. If it is the first at this step and has the lowest loss so far, save the weights."""
        self.num_evaluated += 1
        if self.num_evaluated == 1 and self.compare(evaluation.loss) and self.recipe.steps > self.recipe.evaluate_every:
            # outside of the test for the main process: all take part in gathering
            weights = self.processes.whole(self.final_weights())
            if self.processes.is_main:
                write_best(self.run, self.model, weights)

    def final_weights(self) -> dict[str, Tensor]:
        """Return the final weights in float32, averaged if the recipe sets `ema_decay`."""
        average = self.average.tensors if self.average else {}
        return {**self.model.state_dict(), **float32_weights(self.model, self.optimizer), **average}

    def provenance(self) -> dict[str, Any]:
        """Return hashes of specification and data, and library versions, to save in a checkpoint."""
        return {
            "spec": fingerprint(self.model.spec),
            "data": self.objective.fingerprint,
            "versions": {"archetype": archetype.__version__, "torch": torch.__version__},
        }

    def save(self) -> None:
        """Write a checkpoint in the background, after waiting for the previous one."""
        # all wait: two checkpoints at once would mix their exchanges
        self.processes.together(self.background.wait)
        run, step, provenance, keep = self.run, self.step, self.provenance(), self.recipe.keep_checkpoints
        # Weights, optimizer state and step are all that an exact resumption needs: batches and random numbers are
        # functions of seed and step, and the evaluation history is in the metrics file. Of bfloat16 weights the float32
        # masters are saved; rounding them gives the same bfloat16 values again.
        weights = {**self.model.state_dict(), **float32_weights(self.model, self.optimizer)}
        files = [weights, optimizer_tensors(self.model, self.optimizer)]
        if self.average is not None:
            # the average replaces the weights of the same name; frozen weights are included, so the file is a whole
            # model
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
        """Yield an event for each checkpoint that all processes wrote since the last call. Raise write errors."""
        # asked in all processes at the same step, so that all report the checkpoint together
        if self.background.is_pending and (wait or self.processes.all(not self.background.is_writing)):
            yield from map(Saved, self.processes.together(self.background.finished))
