"""Processes that train one model together: the rows of each process, and their communication."""

import logging
import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from archetype.errors import ArchetypeError, DataError
from archetype.io.lock import locked
from archetype.models.build import Model
from archetype.models.spec import ModelSpec
from archetype.nn.buffers import copy_buffers, restore_buffers
from archetype.runs import checkpoints
from archetype.training.objectives.base import Batch, Counts, LossOutput, MicroBatch, Objective
from archetype.training.optimizers import restore_optimizer
from archetype.training.parallel import checkpoint
from archetype.training.parallel.context import ContextParallel
from archetype.training.parallel.experts import share_experts
from archetype.training.parallel.layout import Parallel
from archetype.training.parallel.shards import by_mesh, gathered, local, materialize, shared_alike, whole
from archetype.training.parallel.tensor import share_tensors
from archetype.training.processes import Processes

if TYPE_CHECKING:
    from archetype.training.parallel.pipeline import Pipeline
    from archetype.training.recipe import Recipe
    from archetype.training.state import TrainState

T = TypeVar("T")
MESH = ("pipeline", "data_parallel", "shard", "context", "tensor")  # from few exchanges to many: the last are closest
WEIGHTS_MESH = ("pipeline", "data_parallel", "shard", "tensor")  # here shard includes the processes of context
EXPERT_MESH = ("pipeline", "copies", "expert", "tensor")
LOST = re.compile(r"gloo/|Connection (closed|reset|refused)|Broken pipe")  # errors after another process ended
log = logging.getLogger(__name__)
PATIENCE = timedelta(hours=6)  # while the main process reads and tokenizes all data


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple["ManyProcesses", torch.device]]:
    """Join the processes that torchrun has started, and yield them with this process's device."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    _silence_hints()
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield ManyProcesses(device), device
    except ArchetypeError:
        if dist.get_rank() == 0:
            raise
        raise SystemExit(2) from None  # the main process reports it
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and LOST.search(str(error)) is None:
            raise
        if not _is_first_to_say():
            raise SystemExit(2) from None
        cause = "another process of this run has ended"
        raise DataError("torchrun", cause, "see its output or the system log, then continue with --resume") from None
    finally:
        # gloo's thread frees Python objects of the last exchange, for which it needs the interpreter's lock; torch
        # holds that lock while a group that is freed waits for the thread
        time.sleep(0.2)
        dist.destroy_process_group()


def _silence_hints() -> None:
    if not log.isEnabledFor(logging.INFO):
        logging.getLogger("torch.distributed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=r"torch\.distributed\.")


def _is_first_to_say() -> bool:
    """Return whether this process is the first to report that a process ended; true if the store is unreachable."""
    try:
        # checked first, since the store's client would print a C++ stack trace
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=5).close()
        return bool(dist.distributed_c10d._get_default_store().add("archetype/lost", 1) == 1)
    except (OSError, RuntimeError):
        return True


class ManyProcesses(Processes):
    """Several processes on one device mesh.

    Losses are shares of the mean over all targets of the global batch, and gradients are summed, so that a step gives
    the same update as in a single process.
    """

    is_alone = False

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_main = device, dist.get_rank() == 0
        self.ddp: DistributedDataParallel | None = None
        self.size, self.micro_batch_size, self.share = 1, 1, 1.0
        self.pipeline: Pipeline | None = None
        self.context: ContextParallel | None = None
        self.saving: dist.ProcessGroup | None = None  # used by threads that write checkpoints during the next steps

    def check(self, recipe: "Recipe", spec: ModelSpec) -> None:
        layout = recipe.parallel.for_world(dist.get_world_size())
        layout.check(spec, recipe)

    def building_device(self, recipe: "Recipe", device: torch.device) -> torch.device:
        layout = recipe.parallel
        # no process holds the whole model: each fills its shards later
        return torch.device("meta") if max(layout.shard, layout.tensor, layout.expert, layout.pipeline) > 1 else device

    def begin(self, begin: "Callable[[], TrainState]", join: "Callable[[], TrainState]") -> "TrainState":
        """Start or resume a run in the main process, join it in all other processes, and distribute the model."""
        # first the main process, which writes the folder that the others then read
        state = self.together(begin if self.is_main else lambda: None)
        joined = self.together(lambda: None if self.is_main else join())
        state = state or joined
        assert state is not None
        self.arrange(state)
        return state

    def together(self, action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
        error: Exception | None = None
        try:
            result = action()
        except Exception as caught:
            # raised after the exchange: the other processes are waiting in it
            error = caught
        failed = self._largest(0 if error is None else 1, group)
        if error is not None:
            raise error
        if failed:
            raise SystemExit(2)  # reported by the process in which it failed
        return result

    def all(self, condition: bool) -> bool:
        return not self._largest(0 if condition else 1)

    def arrange(self, state: "TrainState") -> None:
        """Distribute the model and the optimizer over the mesh."""
        state.processes, layout = self, state.recipe.parallel.for_world(dist.get_world_size())
        sizes = tuple(getattr(layout, name) for name in MESH)
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=MESH)
        # processes with different tokens; processes along tensor and pipeline share a number, so they draw alike
        tokens = mesh["data_parallel", "shard", "context"]._flatten("tokens")
        self.number, self.tokens_group = tokens.get_local_rank(), tokens.get_group()
        # context is the last dimension of tokens: its processes have the same rows
        self.row, self.size = self.number // layout.context, layout.num_rows_shared
        # losses and counts are summed over these; tensor is left out, since its processes compute the same loss
        self.measured = mesh["pipeline", "data_parallel", "shard", "context"]._flatten("measured")
        self.stages = mesh["pipeline"]
        # with tensor parallelism no process has the head's whole matrix
        state.objective.chunks_logits = layout.tensor == 1
        if state.objective.compares_rows and self.size > 1:
            rows_at_once = min(
                state.recipe.micro_batch_size or state.recipe.batch_size, state.recipe.batch_size // self.size
            )
            state.notes = (*state.notes, f"each row is compared only with the {rows_at_once} rows of its forward pass")
        self.holds_all = layout.shard == layout.tensor == layout.expert == layout.pipeline == 1
        self.writes_checkpoints = self.is_main or not self.holds_all
        # a separate group: exchanges of the writing thread must not mix with exchanges of the training step
        self.saving = dist.new_group(timeout=PATIENCE, backend="gloo")
        state.background.finished()  # saved by the main process before the others joined
        self.ddp = data_parallel(state, self.tokens_group) if self.holds_all else None
        self.context = ContextParallel(mesh["context"]) if layout.context > 1 else None
        if self.holds_all:
            return
        state.notes = (*state.notes, *share_model(state.model, layout, self.device, state.recipe.dtype))
        self.pipeline = None
        if layout.pipeline > 1:
            from archetype.training.parallel.pipeline import Pipeline  # importing torch's pipelines takes two seconds

            self.pipeline = Pipeline(state.model, self.stages, layout.schedule, self.device)
        if state.model.device.type == "meta":
            weights = state.unread.weights_file if state.unread else None
            materialize(state.model, self.device, state.recipe.seed, weights)
        state.model.to(self.device)
        # built after the split, so that its state has the sizes of the shards
        state.optimizer = state.recipe.optimizer.build(state.model)
        if any(isinstance(parameter, DTensor) for parameter in state.model.parameters()):
            state.optimizer.param_groups = [
                {**group, "params": parameters}
                for group in state.optimizer.param_groups
                for parameters in by_mesh(group["params"])
            ]
        if state.unread is not None:
            moments = shared_alike(state.unread.optimizer(), state.model)
            restore_optimizer(state.model, state.optimizer, moments)

    def parts(self, objective: Objective, batch: Batch, rows: int | None) -> list[MicroBatch]:
        """Return the micro-batches of this process. Every process has the same number of micro-batches."""
        if self.pipeline is not None:  # splits its rows into micro-batches itself
            self.micro_batch_size, rows = rows or 1, None
        total = len(batch[0])
        num_rows = -(-total // self.size)
        step = min(rows or num_rows, num_rows)
        parts = []
        # targets of all processes, so that the shares of all micro-batches sum to 1
        total_targets = max(1, objective.num_targets(batch))
        # with context parallelism, only the targets at this process's positions count
        target_counts = partial(self.context.target_counts, objective) if self.context else objective.target_counts
        # A process without rows left computes one row with share 0: a process that skipped a pass would leave the
        # others waiting in its exchanges.
        for first in range(self.row * num_rows, (self.row + 1) * num_rows, step):
            last = min(first + step, (self.row + 1) * num_rows, total)
            part = tuple(tensor[first:last] if first < last else tensor[:1] for tensor in batch)
            counts = target_counts(part)
            parts.append(MicroBatch(part, counts[0] / total_targets if first < last else 0.0, counts))
        self.share = parts[0].share
        return parts

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """Synchronize DDP's gradients only in the last micro-batch's backward pass. FSDP synchronizes in every pass."""
        return nullcontext() if self.ddp is None or is_last else self.ddp.no_sync()

    def compute_loss(self, objective: Objective, model: nn.Module, part: Batch, counts: Counts) -> LossOutput:
        if self.pipeline is not None and not model.training:
            return self.pipeline.evaluate(objective, part)
        if self.pipeline is not None:
            return self.pipeline.train(objective, part, counts, self.micro_batch_size, self.share)
        # DDP only in training: evaluation has no gradients to exchange
        model = self.ddp if self.ddp is not None and model.training else model
        compute_loss = partial(self.context.compute_loss, objective) if self.context else objective.compute_loss
        return compute_loss(model, part, counts)

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by their norm over all shards. Return the norm before clipping, a scalar on the device."""
        parameters = [parameter for parameter in parameters if parameter.grad is not None]
        # pipeline stages use neither DDP nor FSDP, which would have summed the gradients of the copies
        if self.pipeline is not None and self.size > 1:
            for gradient in (local(parameter.grad) for parameter in parameters if parameter.grad is not None):
                dist.all_reduce(gradient, group=self.tokens_group)
        for parameter in parameters:  # PyTorch 2.11 leaves gradients that are partial sums unclipped
            if isinstance(grad := parameter.grad, DTensor) and isinstance(parameter, DTensor):
                parameter.grad = grad.redistribute(placements=parameter.placements)
        groups = by_mesh(parameters)
        norms = [torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in groups]
        # the norm of a DTensor gradient is a partial sum; `whole` completes it over the group's shards
        norm: Tensor = torch.stack([whole(norm).float() for norm in norms]).norm()
        if self.pipeline is not None:
            # each stage has other parameters: squares add up
            square = norm.square()
            dist.all_reduce(square, group=self.stages.get_group())
            norm = square.sqrt()
        for group in groups:
            torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)
        return norm

    def read(
        self, losses: list[Tensor], shares: list[float], num_targets: float, norm: Tensor
    ) -> tuple[float, float, float]:
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for mean, share in zip(losses, shares, strict=True):
            loss += mean.double() * share
        sums = torch.stack([loss, torch.full_like(loss, num_targets)])
        dist.all_reduce(sums, group=self.measured.get_group())  # on the device, so that nothing is read before
        loss_read, num_targets, norm_read = torch.cat([sums, norm.double()[None]]).tolist()
        return loss_read, num_targets, norm_read

    def sum(self, *values: float) -> tuple[float, ...]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self.measured.get_group())
        return tuple(sums.tolist())

    @property
    def first_signal(self) -> Callable[[int | None], int | None]:
        """Function that exchanges signals and returns the largest to all processes, so that all stop at one step."""
        return lambda received: self._largest(received or 0) or None

    @contextmanager
    def _main_locks(self, folder: Path) -> Iterator[None]:
        with ExitStack() as stack:
            self.together(lambda: stack.enter_context(locked(folder)) if self.is_main else None)
            yield

    def locked(self, folder: Path) -> AbstractContextManager[None]:
        return self._main_locks(folder)

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return gathered tensors in the main process, on the CPU if they are sharded. All processes must call this."""
        if self.holds_all:
            return tensors
        # with a pipeline, every stage keeps its layers, and the first stage collects them
        complete = gathered(tensors, self.is_main or self.pipeline is not None)
        if self.pipeline is None:
            return complete
        stages: list[Any] = [None] * self.stages.size()
        first = self.stages.get_local_rank() == 0
        dist.gather_object(complete, stages if first else None, group=self.stages.get_group(), group_dst=0)
        return {name: tensor for stage in stages if stage for name, tensor in stage.items()}

    def write_checkpoint(
        self,
        folder: Path,
        step: int,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        provenance: dict[str, Any],
        average: dict[str, Tensor] | None,
        keep: int,
    ) -> None:
        """Write a checkpoint of whole tensors in the main process, or of shards from all processes."""
        if self.holds_all:
            super().write_checkpoint(folder, step, weights, optimizer, provenance, average, keep)
        else:
            pieces = {checkpoints.WEIGHTS: weights, checkpoints.MOMENTS: optimizer}
            checkpoint.write(self, folder, step, pieces, provenance, keep)

    def _largest(self, value: int, group: dist.ProcessGroup | None = None) -> int:
        largest = torch.tensor(value)  # on the host, exchanged by gloo, so that no device is read
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        return int(largest)


def data_parallel(state: "TrainState", group: dist.ProcessGroup) -> DistributedDataParallel:
    """Wrap the model in DDP with gradients that are summed over the copies rather than averaged."""

    def total(buffer: Tensor) -> torch.futures.Future[Tensor]:
        summed: torch.futures.Future[Tensor] = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        return summed.then(lambda done: done.value()[0])

    unused = unused_parameters(state)
    if unused:
        names = f"{', '.join(unused[:3])}{f' and {len(unused) - 3} more' if len(unused) > 3 else ''}"
        state.notes = (*state.notes, f"not trained, since the loss does not depend on them: {names}")
        for name in unused:
            state.model.get_parameter(name).requires_grad_(False)
    ddp = DistributedDataParallel(state.model, process_group=group)
    # DDP's default divides gradients by the number of copies; ours are shares of the mean already
    ddp.register_comm_hook(None, lambda _, bucket: total(bucket.buffer()))
    return ddp


def unused_parameters(state: "TrainState") -> list[str]:
    """Return the trainable parameters that get no gradient, such as an unused pooler's. DDP would wait for them."""
    # one row through the model; running statistics of norms are restored, so the probe leaves no trace
    model, buffers = state.model, copy_buffers(state.model)
    row = tuple(tensor[:1].to(model.device) for tensor in state.objective.batch(state.step))
    state.objective.compute_loss(model, row).loss.backward()
    unused = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    model.zero_grad(set_to_none=True)
    restore_buffers(buffers)
    return unused


def share_model(model: Model, layout: Parallel, device: torch.device, dtype: str) -> list[str]:
    """Distribute a model in place: matrices, experts, then the weights of every block. Return notes for the user.

    Matrix products and gathered weights use `dtype`; gradients are reduced in float32.
    """
    sizes = layout.pipeline, layout.data_parallel or 1, layout.shard * layout.context, layout.tensor
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=WEIGHTS_MESH)
    notes: list[str] = []
    if layout.tensor > 1 and (whole_parts := share_tensors(model, mesh["tensor"])):
        names = f"{', '.join(whole_parts[:3])}{f' and {len(whole_parts) - 3} more' if len(whole_parts) > 3 else ''}"
        notes.append(f"parallel.tensor: not split: {names}")
    if layout.num_tokens_shared > 1 and layout.pipeline == 1:
        # one dimension: plain FSDP; two: HSDP, which shards within a copy and sums gradients across copies
        copies = mesh["shard"] if layout.data_parallel == 1 else mesh["data_parallel", "shard"]
        blocks = _blocks(model)
        policy = MixedPrecisionPolicy(torch.bfloat16 if dtype == "bfloat16" else None, torch.float32)
        meshes: list[tuple[nn.Module, DeviceMesh]] = [(module, copies) for module in (*blocks, model)]
        if layout.expert > 1:
            sizes = layout.pipeline, layout.num_tokens_shared // layout.expert, layout.expert, layout.tensor
            experts = init_device_mesh(device.type, sizes, mesh_dim_names=EXPERT_MESH)
            # experts first: FSDP of a block leaves out modules that are sharded already. An expert's weights are shared
            # only by the processes that have the same experts.
            meshes = [(module, experts["copies"]) for module in share_experts(model, experts["expert"])] + meshes
        for module, module_mesh in meshes:
            fully_shard(module, mesh=module_mesh, mp_policy=policy)
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)  # losses are shares of the mean: their gradients are summed
            module.set_force_sum_reduction_for_comms(True)
    return notes


def _blocks(model: nn.Module) -> list[nn.Module]:
    # members of the outermost module lists: FSDP gathers and frees the weights of one block at a time
    lists: list[str] = []
    blocks: list[nn.Module] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{outer}.") for outer in lists):
            lists.append(path)
            blocks += module.children()
    return blocks
