"""The plan of a run: its cost, time and memory, before anything of it is written."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from archetype.estimate.report import cost_report
from archetype.machine.memory import free_memory
from archetype.runs.peaks import product_peak
from archetype.table import Table, quantity, size
from archetype.training.block_execution import number_recomputed
from archetype.training.budget import predictions_of
from archetype.training.memory import StepMemory, StepMemoryCost
from archetype.training.resolve import ResolvedRecipe
from archetype.training.step_flops import step_flops
from archetype.training.throughput import seconds_of_steps

MEASURED_FLOPS = 2e13  # of a step: a smaller one is measured, a larger one is estimated
SHARE_OF_PEAK = 0.5  # that a large step reaches


@dataclass(frozen=True)
class Plan:
    """The cost of a run.

    Attributes:
        parameters: of the model.
        trained: of them, those that learn, with an adapter's.
        steps: optimizer steps.
        tokens: predicted in all steps, without padding; images or pairs where these are the unit.
        unit: of what is predicted.
        flops: of all steps, with what is computed again.
        rows: that are computed at once.
        length: tokens of each.
        memory: of a step.
        free: bytes that the device has free; None where it does not say.
        seconds: of the whole run on this device.
        is_measured: whether the time is that of a few steps; else half of the peak of a matrix product is assumed.
    """

    parameters: int
    trained: int
    steps: int
    tokens: int
    unit: str
    flops: float
    rows: int
    length: int
    memory: StepMemory
    free: int | None
    seconds: float
    is_measured: bool

    @property
    def fits(self) -> bool:
        """Whether a step fits into the memory that is free."""
        return self.free is None or self.memory.peak <= self.free

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return asdict(self) | {"fits": self.fits}

    def table(self) -> Table:
        """One line for each figure."""
        memory = self.memory
        how = "of a few steps, measured" if self.is_measured else "at half of the peak of a matrix product"
        free = "unknown" if self.free is None else size(self.free)
        rows = [
            ["parameters", f"{self.parameters:,}", f"{self.trained:,} learn"],
            ["steps", f"{self.steps:,}", f"{self.tokens:,} {self.unit}s, {quantity(self.flops)}FLOPs"],
            ["weights", size(memory.weights), "with masters and moving average"],
            ["optimizer", size(memory.optimizer), "its state"],
            ["gradients", size(memory.gradients), ""],
            ["copies of weights", size(memory.weight_copies), "in bfloat16, from forward to backward"],
            ["activations", size(memory.activations), f"of {self.rows:,} rows of {self.length:,} tokens"],
            ["logits", size(memory.logits), "with what the loss makes of them"],
            ["peak", size(memory.peak), f"{free} free: it {'fits' if self.fits else 'does not fit'}"],
            ["time", duration(self.seconds), how],
        ]
        return Table(["", "", ""], rows, text_columns=1)


def plan(resolved: ResolvedRecipe, device: torch.device) -> Plan:
    """The cost of a run, its memory by count and its time by measurement where a step is small enough.

    Args:
        resolved: the recipe, from `resolve_recipe`.
        device: where the model would go.
    """
    recipe, spec, objective = resolved.recipe, resolved.spec, resolved.objective
    batch, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
    rows, length = min(batch, recipe.micro_batch_size or batch), length or spec.context_length
    cost = StepMemoryCost(recipe, spec)
    memory, free = cost.step(rows, length, rows < batch), free_memory(device)
    share = number_recomputed(recipe.recompute, cost.num_blocks) / max(1, cost.num_blocks)
    once_more = cost_report(spec, batch, length, recipe.dtype).flops_of_blocks
    flops = step_flops(recipe, spec, batch, length) + share * cost.share_of_blocks_with_gradients * once_more
    is_measured = flops <= MEASURED_FLOPS and (free is None or memory.peak <= free)
    if is_measured:
        seconds = seconds_of_steps(recipe, spec, objective, device)
    else:
        dtype = torch.bfloat16 if recipe.dtype == "bfloat16" else torch.float32
        seconds = flops / (SHARE_OF_PEAK * product_peak(device, dtype).rate)
    return Plan(
        cost.num_parameters,
        cost.num_trained,
        recipe.steps,
        predictions_of(objective, recipe.steps),
        objective.unit,
        recipe.steps * flops,
        rows,
        length,
        memory,
        free,
        recipe.steps * seconds,
        is_measured,
    )


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, the largest two."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
