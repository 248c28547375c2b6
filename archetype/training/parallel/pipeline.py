"""Pipeline parallelism: each process has some layers and passes micro-batches to the next process (Huang 2018)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from archetype.models.build import Model
from archetype.roles.parallel import plans_of
from archetype.training.objectives.base import Batch, Counts, LossOutput, Objective, cross_entropy_loss

SCHEDULES: dict[str, type[ScheduleGPipe] | type[Schedule1F1B]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
NO_LOSS = LossOutput(torch.zeros(()), 0, 0)  # for all stages but the last


class Pipeline:
    """Pipeline stage of this process. The layers of other stages are removed from `model`."""

    def __init__(self, model: Model, mesh: DeviceMesh, schedule: str, device: torch.device) -> None:
        self.schedule, self.device = SCHEDULES[schedule], device
        self.group, self.stage, self.num_stages = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        layers = plans_of(model).stage(self.stage, self.num_stages)
        assert layers is not None
        self.layers: Any = layers
        self.width, self.dtype = layers.model.spec.d_model, model.dtype
        self.judge: Callable[[Tensor, Tensor], Tensor] | None = None  # loss of a micro-batch, from logits and targets
        self._schedules: dict[tuple[int, ...], ScheduleGPipe | Schedule1F1B] = {}

    def train(self, objective: Objective, part: Batch, counts: Counts, rows: int, weight: float) -> LossOutput:
        """Run forward and backward passes of all micro-batches of `rows` rows, with gradients scaled by `weight`."""
        inputs, targets = objective.inputs_and_targets(part)
        (tokens,) = inputs.values()
        total = max(1, counts[0])

        def judge(logits: Tensor, targets: Tensor) -> Tensor:
            output = cross_entropy_loss(logits, targets, objective.label_smoothing)
            # this micro-batch's share of all targets, computed in float64 on the device: nothing is read here
            return output.loss * (torch.as_tensor(output.num_targets).double() / total * weight).float()

        self.judge, schedule = judge, self._schedule(tokens.shape, len(tokens) // rows)
        losses: list[Tensor] = []
        stage_inputs = (tokens,) if self.layers.is_first else ()  # later stages receive theirs
        if not self.layers.is_last:
            schedule.step(*stage_inputs, return_outputs=False)
            # gradients are computed; the training loop still calls backward on this loss
            return LossOutput(torch.zeros((), device=self.device, requires_grad=True), 0, None)
        schedule.step(*stage_inputs, target=targets, losses=losses, return_outputs=False)
        # the loop multiplies by the share again
        mean = torch.stack([loss.detach() for loss in losses]).sum() / weight
        return LossOutput(mean.requires_grad_(), total, None)  # a leaf: backward has run

    def evaluate(self, objective: Objective, part: Batch) -> LossOutput:
        """Run one forward pass. Only the last stage returns the loss."""
        inputs, targets = objective.inputs_and_targets(part)
        (tokens,) = inputs.values()
        x = tokens
        if not self.layers.is_first:
            # (B, T, D), received from the previous stage
            x = torch.empty(*tokens.shape, self.width, dtype=self.dtype, device=self.device)
            dist.recv(x, group=self.group, group_src=self.stage - 1)
        y: Tensor = self.layers(x)  # (B, T, D), of the last stage the logits (B, T, V)
        if self.layers.is_last:
            return cross_entropy_loss(y, targets)
        dist.send(y.to(self.dtype).contiguous(), group=self.group, group_dst=self.stage + 1)
        return NO_LOSS

    def _judged(self, logits: Tensor, targets: Tensor) -> Tensor:
        assert self.judge is not None
        return self.judge(logits, targets)

    def _schedule(self, shape: torch.Size, micro_batches: int) -> ScheduleGPipe | Schedule1F1B:
        # a stage infers the shapes that it receives once, so other shapes need another schedule
        key = (*shape, micro_batches)
        if key not in self._schedules:
            stage = PipelineStage(self.layers, self.stage, self.num_stages, self.device, group=self.group)
            # scale_grads=False: the losses are weighted already, and the schedule would divide by their number
            self._schedules[key] = self.schedule(stage, micro_batches, loss_fn=self._judged, scale_grads=False)
        return self._schedules[key]
