"""Estimate the peak memory of a training step, and refuse a step that does not fit.

`estimate/memory.py` counts the tensors saved by a model's passes; this module adds the recipe's optimizer, data types,
recomputed blocks and loss chunks.
"""

import copy
import re
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from archetype.errors import SpecError
from archetype.estimate.fit import largest
from archetype.estimate.memory import MemoryCost, SavedActivations
from archetype.machine.memory import free_memory
from archetype.models.build import build_on_meta
from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.parts.adapter.module import install
from archetype.table import size
from archetype.training.block_execution import blocks_of, number_recomputed
from archetype.training.chunked_loss import chunk_rows
from archetype.training.objectives.base import LARGE_LOGITS, Objective
from archetype.training.optimizers.groups import Grouped, group_parameters
from archetype.training.pretrained import set_trainable
from archetype.training.recipe import Recipe
from archetype.training.stages import names_trained, stage_at

FLOAT32, BFLOAT16 = 4, 2
# prefixes of parameters that are used after the last block
AFTER_BLOCKS = ("residual_exit.", "final_norm.", "lm_head.", "classifier.")


@dataclass(frozen=True)
class StepMemory:
    """Memory of one training step in bytes.

    Attributes:
        weights: weights, including master weights and moving average.
        optimizer: optimizer state.
        gradients: float32 gradients of all trained parameters.
        weight_copies: bfloat16 copies of matrices that autocast keeps from the forward to the backward pass.
        activations: activations saved for the backward pass, without the logits.
        logits: tensors of the loss and its gradient at the start of the backward pass.
        peak: maximum at any time during the step.
        teacher: weights of a teacher and outputs of its pass.
        teacher_weights: weights of a teacher.
        teacher_pass: outputs of a teacher's pass, or its peak memory if that is larger.
    """

    weights: int
    optimizer: int
    gradients: int
    weight_copies: int
    activations: int
    logits: int
    peak: int
    teacher: int = 0
    teacher_weights: int = 0
    teacher_pass: int = 0


class StepMemoryCost:
    """Memory of a training step as a function of batch size and sequence length; of a run with stages, the largest."""

    def __init__(self, recipe: Recipe, spec: ModelSpec) -> None:
        self.recipe, self.spec = recipe, spec
        self.is_bfloat16 = recipe.weights_dtype == "bfloat16"
        self.cost = model_cost(spec)
        self.memory = MemoryCost(self.cost, "bfloat16" if self.is_bfloat16 else recipe.dtype)
        self.model = model = build_on_meta(spec)
        self.num_blocks = len(blocks_of(model))
        if recipe.adapter is not None:
            install(model, recipe.adapter)
        set_trainable(model, recipe)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.grouped: list[Grouped] = group_parameters(model, recipe.optimizer.groups, recipe.optimizer.weight_decay)
        self.num_averaged = self.num_trained if recipe.ema_decay is not None else 0
        self.fits_layer = False  # whether a step computes only one block
        last, _ = stage_at(recipe.stages, recipe.steps - 1)
        self.stages = [self._of_stage(index) for index in range(last + 1)] if recipe.stages else []

    def _of_stage(self, index: int) -> "StepMemoryCost":
        cost, names = copy.copy(self), names_trained(self.model, self.recipe, index)
        cost.grouped = [each for each in self.grouped if names is None or each.name in names]
        cost.stages, cost.num_trained = [], sum(each.parameter.numel() for each in cost.grouped)
        cost.fits_layer = index < len(self.recipe.stages) and self.recipe.stages[index].fit is not None
        return cost

    @cached_property
    def num_trained(self) -> int:
        return sum(each.parameter.numel() for each in self.grouped)

    def step(self, batch: int, length: int, accumulates: bool = False) -> StepMemory:
        """Estimate the memory of a step on `batch` sequences of `length` tokens.

        With gradient accumulation, the gradients of earlier micro-batches are held during the forward pass.
        """
        if self.stages:
            return max((cost.step(batch, length, accumulates) for cost in self.stages), key=lambda step: step.peak)
        recipe, gradients = self.recipe, FLOAT32 * self.num_trained
        # float32 weights, and with bfloat16 weights their copies for the passes
        weights = self.num_parameters * (FLOAT32 + (BFLOAT16 if self.is_bfloat16 else 0))
        # the moving average, one float32 per trained parameter like the gradients
        weights += FLOAT32 * self.num_averaged
        optimizer = recipe.optimizer.state_bytes(self.grouped)
        saved = self.memory.saved_activations(batch, length)
        held, logits = self._loss(saved)
        # activations outside the blocks; the logits and their temporaries are counted separately
        outside = saved.embedding_and_head - saved.num_logits * saved.logits - held
        # weights that are bfloat16 already need no copies by autocast
        copies = 0 if self.is_bfloat16 else self.memory.cast_weights
        if self.share_of_blocks_with_gradients == 0:  # only the head is trained; save its inputs
            outside, copies = batch * length * FLOAT32 * getattr(self.spec, "d_model", 0), 0
        if self.fits_layer:  # its input, its output, and the teacher's output
            outside, logits = 3 * batch * length * FLOAT32 * getattr(self.spec, "d_model", 0), 0
        num_recomputed = number_recomputed(recipe.recompute, self.num_blocks)
        trained = self.share_of_blocks_with_gradients
        of_recomputed = num_recomputed / max(1, self.num_blocks)
        # a recomputed block saves its input only; a frozen block below all trained ones saves nothing
        inputs = int(outside + trained * of_recomputed * saved.block_inputs)
        activations = inputs + int(trained * (1 - of_recomputed) * saved.blocks)
        # The first blocks are recomputed. When the backward pass reaches them, the later blocks have freed their
        # activations and hold only gradients.
        again = saved.largest_block if num_recomputed else 0
        # gradients that exist when the backward pass has gone through the blocks that are not recomputed
        behind = gradients if accumulates else int((1 - of_recomputed) * gradients)
        head = self.cost.head
        tied = FLOAT32 * head.num_weights if head.tied else 0  # separate gradients of embedding and head
        # A step can peak at four moments, and which is highest depends on the recipe:
        # 1. between the forward and the backward pass: all activations and logits, and gradients accumulated so far;
        # 2. when the backward pass enters the recomputed blocks: gradients of later blocks, activations of one block;
        # 3. at the end of the backward pass: all gradients, where tied weights still have two each;
        # 4. in the optimizer step: all gradients and the optimizer's temporary tensors.
        peak = (
            weights
            + optimizer
            + max(
                (gradients if accumulates else 0) + copies + activations + logits,
                behind + copies + inputs + again,
                gradients + tied + again,
                gradients + recipe.optimizer.workspace_bytes(self.grouped),
            )
        )
        return StepMemory(weights, optimizer, gradients, copies, activations, logits, peak)

    def _loss(self, saved: SavedActivations) -> tuple[int, int]:
        # returns the bytes of saved logits that chunking avoids (with a soft cap only) and the peak bytes of the loss
        head, logits, count = self.cost.head, saved.logits, saved.num_logits
        if not head.vocab_size:
            return 0, 3 * logits  # the gradient of a classifier's small weight is negligible
        if logits <= LARGE_LOGITS:
            return 0, count * logits + saved.loss_gradient
        num_tokens = logits // FLOAT32 // head.vocab_size
        # logits of a chunk; their bytes below: float32 (three tensors with a soft cap) and the bfloat16 original
        chunk = min(num_tokens, chunk_rows(head.vocab_size)) * head.vocab_size
        copies = FLOAT32 * (3 if head.has_softcap else 1) + (0 if self.memory.compute_dtype == "float32" else BFLOAT16)
        # the chunked loss computes gradients of head and features along with the loss, so it holds both
        gradients = count * FLOAT32 * (head.num_weights + num_tokens * head.num_features)
        never_held = count * logits // FLOAT32 * self.memory.itemsize if head.has_softcap else 0
        return never_held, gradients + chunk * copies

    @property
    def share_of_blocks_with_gradients(self) -> float:
        """Fraction of blocks with gradients. Blocks below the first trained parameter save no activations."""
        if self.fits_layer:
            return 1 / max(1, self.num_blocks)
        matches = [re.search(r"^blocks\.(\d+)\.", each.name) for each in self.grouped]
        if not all(matches):
            after = all(
                match or each.name.startswith(AFTER_BLOCKS) for match, each in zip(matches, self.grouped, strict=True)
            )
            if not after:
                return 1.0
        # parameters after the blocks need no activations of any block
        first = min((int(match[1]) for match in matches if match), default=self.num_blocks)
        return (self.num_blocks - first) / max(1, self.num_blocks)


def step_memory(
    cost: StepMemoryCost, objective: Objective, batch: int, length: int, accumulates: bool = False
) -> StepMemory:
    """Estimate the memory of a step with the teacher of its objective; of a run with stages, the largest."""
    if cost.stages:
        of_stages = (step_memory(stage, objective, batch, length, accumulates) for stage in cost.stages)
        return max(of_stages, key=lambda step: step.peak)
    memory = cost.step(batch, length, accumulates)
    if objective.teacher is None:
        return memory
    teacher = objective.teacher.memory(batch, length, cost.fits_layer)
    # the teacher reads the batch first, before the model has activations
    before = memory.weights + memory.optimizer + (memory.gradients if accumulates else 0)
    return replace(
        memory,
        peak=teacher.weights + max(memory.peak + teacher.outputs, before + teacher.running),
        teacher=teacher.weights + teacher.outputs,
        teacher_weights=teacher.weights,
        teacher_pass=max(teacher.outputs, teacher.running),
    )


def check_memory(
    recipe: Recipe,
    spec: ModelSpec,
    objective: Objective,
    device: torch.device,
    fewer_at_once: str = "--micro-batch-size {}",
    override: str = "--force",
) -> None:
    """Refuse a training step that needs more memory than is free.

    Args:
        fewer_at_once: option that the error suggests, with {} for the micro-batch size.
        override: option that skips this check; empty if the caller has no such option.

    Raises:
        SpecError: the step does not fit; the message names the largest micro-batch that fits.
    """
    free = free_memory(device)
    batch, length = objective.batch_shape or (recipe.batch_size, recipe.sequence_length)
    micro_batch = min(batch, recipe.micro_batch_size or batch)
    cost, num_tokens = StepMemoryCost(recipe, spec), length or spec.context_length

    def peak(micro_batch: int, accumulates: bool) -> int:
        return step_memory(cost, objective, micro_batch, num_tokens, accumulates).peak

    needed = peak(micro_batch, micro_batch < batch)
    if free is None or needed <= free:
        return
    # without and with accumulation: gradients of earlier micro-batches take memory too
    most = largest(lambda count: peak(count, False) <= free, micro_batch)
    most_at_once = largest(lambda count: peak(count, True) <= free, micro_batch)
    tokens = f" of {num_tokens:,} tokens" if length else ""
    field = "batch_size" if micro_batch == batch else "micro_batch_size"
    cause = f"a step with {micro_batch:,} sequences{tokens} needs {size(needed)}, but only {size(free)} is free"
    otherwise = f", or {override}" if override else ""
    if not (most if micro_batch == batch else most_at_once):
        raise SpecError(
            field, f"{cause}, too little for one sequence", f"use a smaller model or shorter sequences{otherwise}"
        )
    if micro_batch < batch:
        raise SpecError(field, cause, f"use at most {most_at_once:,}{otherwise}")
    at_once = f", or {fewer_at_once.format(most_at_once)}, which accumulates gradients over the batch"
    raise SpecError(field, cause, f"use at most {most:,}{at_once if most_at_once else ''}{otherwise}")
