"""Plan of a run: estimated cost, time and memory, before anything is written."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from archetype.estimate.report import cost_report
from archetype.machine.memory import free_memory
from archetype.runs.peaks import product_peak
from archetype.table import Table, quantity, size
from archetype.training.block_execution import number_recomputed
from archetype.training.budget import predictions_of
from archetype.training.memory import StepMemory, StepMemoryCost, step_memory
from archetype.training.resolve import ResolvedRecipe
from archetype.training.step_flops import step_flops
from archetype.training.throughput import seconds_of_steps

MEASURED_FLOPS = 2e13  # steps of up to this many FLOPs are timed; the time of larger ones is estimated
SHARE_OF_PEAK = 0.5  # assumed FLOP rate of a large step, as a fraction of a matrix product's


@dataclass(frozen=True)
class Plan:
    """Estimated cost of a run.

    Attributes:
        trained: number of trainable parameters, including an adapter's.
        tokens: number of predictions in all steps, without padding, in `unit`.
        unit: token, image or pair.
        flops: FLOPs of all steps, including activation recomputation and a teacher's passes.
        rows: rows per forward pass.
        length: tokens per row.
        memory: estimated memory of one step.
        free: free bytes on the device; None if unknown.
        seconds: time of the whole run on this device.
        is_measured: whether a few steps were timed; otherwise half of the peak matrix product FLOP/s is assumed.
        teacher_flops: FLOPs of a teacher's passes in all steps.
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
    teacher_flops: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether a step fits into the free memory."""
        return self.free is None or self.memory.peak <= self.free

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a mapping for `--json`."""
        return asdict(self) | {"fits": self.fits}

    def table(self) -> Table:
        memory = self.memory
        how = "measured on a few steps" if self.is_measured else "assuming half of the peak FLOP/s of matrix products"
        free = "unknown" if self.free is None else size(self.free)
        rows = [
            ["parameters", f"{self.parameters:,}", f"{self.trained:,} trainable"],
            ["steps", f"{self.steps:,}", f"{self.tokens:,} {self.unit}s, {quantity(self.flops)}FLOPs"],
            ["weights", size(memory.weights), "with master weights and moving average"],
            ["optimizer", size(memory.optimizer), "moments"],
            ["gradients", size(memory.gradients), ""],
            ["copies of weights", size(memory.weight_copies), "in bfloat16, from forward to backward"],
            ["activations", size(memory.activations), f"for {self.rows:,} rows of {self.length:,} tokens"],
            ["logits", size(memory.logits), "and temporaries of the loss"],
            *(self._of_teacher() if memory.teacher else []),
            ["peak", size(memory.peak), f"{free} free: the step {'fits' if self.fits else 'does not fit'}"],
            ["time", duration(self.seconds), how],
        ]
        return Table(["", "", ""], rows, text_columns=1)

    def _of_teacher(self) -> list[list[str]]:
        memory, flops = self.memory, quantity(self.teacher_flops)
        return [
            ["teacher", size(memory.teacher_weights), "weights, without gradients"],
            ["teacher's pass", size(memory.teacher_pass), f"outputs, or while it runs; {flops}FLOPs of these"],
        ]


def plan(resolved: ResolvedRecipe, device: torch.device) -> Plan:
    """Estimate the cost of a run. Memory is computed, and time is measured in a few steps if they are small enough."""
    recipe, spec, objective = resolved.recipe, resolved.spec, resolved.objective
    batch, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
    micro_batch, length = min(batch, recipe.micro_batch_size or batch), length or spec.context_length
    cost = StepMemoryCost(recipe, spec)
    free, memory = free_memory(device), step_memory(cost, objective, micro_batch, length, micro_batch < batch)
    # activation checkpointing computes a share of the blocks' forward pass again
    share = number_recomputed(recipe.recompute, cost.num_blocks) / max(1, cost.num_blocks)
    recomputed = cost_report(spec, batch, length, recipe.dtype).flops_of_blocks
    flops = step_flops(recipe, spec, batch, length) + share * cost.share_of_blocks_with_gradients * recomputed
    of_teacher = objective.further_flops(batch, length)
    flops += of_teacher
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
        micro_batch,
        length,
        memory,
        free,
        recipe.steps * seconds,
        is_measured,
        recipe.steps * of_teacher,
    )


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: hours and minutes, or minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
