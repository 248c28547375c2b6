"""Sizes of the process mesh, as `parallel` in a recipe sets them."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.roles.parallel import InLayout
from archetype.spec.base import Size, Spec
from archetype.spec.edit import put
from archetype.training.optimizers import SGD, AdamW, Lion

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe
    from archetype.training.teacher.spec import Teacher


PREDICTED_PER_POSITION = ("next_token", "masked_token")  # objectives with rows of equal length
ELEMENTWISE = (AdamW, Lion, SGD)  # optimizers whose update of an element depends on that element only


class Parallel(Spec):
    """Sizes of the process mesh. Their product, without `expert`, is the number of processes.

    Attributes:
        data_parallel: copies of the model, each for some rows of a batch (default: as many as the number of processes
            allows).
        shard: processes that share the weights, gradients, optimizer state and rows of each copy (FSDP; Zhao 2023).
        tensor: processes that share each weight matrix (Shoeybi 2019).
        pipeline: number of stages of consecutive layers (Huang 2018).
        expert: processes that share the experts, among those of data_parallel, shard and context (Lepikhin 2020).
        context: processes that share the positions of each row and, together with `shard`, the weights (Liu 2023).
        schedule: order of micro-batches in a pipeline.
    """

    sizes: ClassVar[tuple[str, ...]] = ("data_parallel", "shard", "context", "tensor", "pipeline")
    data_parallel: Size | None = None
    shard: Size = 1
    tensor: Size = 1
    pipeline: Size = 1
    expert: Size = 1
    context: Size = 1
    schedule: Literal["gpipe", "1f1b"] = "1f1b"

    @property
    def num_processes(self) -> int:
        return math.prod(getattr(self, size) or 1 for size in self.sizes)

    @property
    def num_rows_shared(self) -> int:
        # processes with different rows of a batch
        return (self.data_parallel or 1) * self.shard

    @property
    def num_tokens_shared(self) -> int:
        # processes with different tokens of a batch
        return self.num_rows_shared * self.context

    def resized(self, assignments: Sequence[str]) -> "Parallel":
        """Return a copy with other sizes, given as `parallel.shard=4`. Raise a SpecError for other assignments."""
        if others := [assignment for assignment in assignments if not assignment.startswith("parallel.")]:
            raise SpecError("--set", f"a resumed run keeps its recipe, which {others[0]!r} would change", "remove it")
        data = self.dump()
        put(data, [text.removeprefix("parallel.") for text in assignments])
        return Parallel.parse(data)

    def for_world(self, num_processes: int) -> "Parallel":
        """Return a copy with `data_parallel` set to fill `num_processes` processes. Refuse sizes that do not fit."""
        sizes = ", ".join(f"{name} {size}" for name in self.sizes if (size := getattr(self, name)) not in (None, 1))
        if self.data_parallel is None and num_processes % self.num_processes == 0:
            return self.replace(data_parallel=num_processes // self.num_processes)
        if self.num_processes != num_processes:
            multiple = " or a multiple" if self.data_parallel is None else ""
            cause = f"{sizes} needs {self.num_processes} processes{multiple}, but torchrun has started {num_processes}"
            raise SpecError("parallel", cause, "change the sizes or --nproc-per-node")
        return self

    def check(self, spec: ModelSpec, recipe: "Recipe") -> None:
        """Refuse sizes that the model or the recipe's other settings do not support.

        Raises:
            SpecError: a size is not supported; the message names it and the field that it does not divide or fit.
        """
        self._check_weights(recipe)
        for path, part in _contents(spec):
            # such as the heads of attention for tensor, and the experts for expert
            for size, fields in part.sizes_to_divide.items():
                for name, total in fields.items():
                    _check_divides(size, getattr(self, size), f"{path}.{name}", total)
        if self.context > 1:
            self._check_context(spec, recipe)
        if self.pipeline > 1:
            self._check_pipeline(spec, recipe.batch_size, recipe.micro_batch_size or 1)
        if self.expert > 1 and self.tensor > 1:
            cause = "cannot be combined with parallel.tensor"
            raise SpecError("parallel.expert", cause, "set parallel.expert or parallel.tensor to 1")
        if self.num_tokens_shared % self.expert:
            sizes = "data_parallel, shard and context" if self.context > 1 else "data_parallel and shard"
            cause = f"{self.expert} does not divide the {self.num_tokens_shared} processes of {sizes}"
            raise SpecError("parallel.expert", cause, "change one of these sizes")
        if self.num_rows_shared > recipe.batch_size:
            cause = f"{recipe.batch_size} rows are too few for {self.num_rows_shared} processes"
            raise SpecError("batch_size", cause, "raise batch_size, or start fewer processes")

    def _check_weights(self, recipe: "Recipe") -> None:
        if self.num_processes > 1 and recipe.weights_dtype != "float32":
            raise SpecError("weights_dtype", "bfloat16 weights cannot be trained by several processes", "remove it")
        if self.num_processes > 1 and recipe.stages:
            raise SpecError("stages", "cannot be combined with several processes", "start a single process")
        if recipe.teacher is not None:
            self._check_teacher(recipe.teacher)
        if recipe.adapter is not None and max(self.tensor, self.pipeline) > 1:
            raise SpecError("adapter", "cannot be combined with tensor or pipeline", "use data_parallel and shard")
        if self.pipeline > 1 and recipe.objective is not None and recipe.objective.kind != "next_token":
            cause = f"supports the objective next_token only, not {recipe.objective.kind}"
            raise SpecError("parallel.pipeline", cause, "use data_parallel and shard")
        # Muon and factored or 8-bit states compute over a whole matrix or block of it, which no process has
        are_cut = max(self.shard, self.tensor, self.expert) > 1
        if recipe.ema_decay is not None and (are_cut or self.pipeline > 1):
            raise SpecError("ema_decay", "needs whole weights, but parallel splits them", "use data_parallel alone")
        optimizer = recipe.optimizer
        if are_cut and (not isinstance(optimizer, ELEMENTWISE) or getattr(optimizer, "state_bits", 32) != 32):
            cause = "needs whole matrices, but parallel splits them"
            raise SpecError("optimizer", cause, "use adamw, lion or sgd in 32 bits, or data_parallel alone")
        if recipe.compile and max(self.tensor, self.expert, self.context) > 1:
            cause = "cannot be combined with tensor, expert or context parallelism"
            raise SpecError("compile", cause, "remove it")

    def _check_teacher(self, teacher: "Teacher") -> None:
        # every process holds the whole teacher, which reads the rows of its process
        for size in ("tensor", "pipeline", "context", "expert"):
            if getattr(self, size) > 1:
                cause = f"cannot be combined with parallel.{size}"
                raise SpecError("teacher", cause, "use data_parallel and shard")
        if teacher.projection and self.shard > 1:
            cause = "needs whole weights, but parallel splits them"
            raise SpecError("teacher.projection", cause, "use data_parallel alone")

    def _check_context(self, spec: ModelSpec, recipe: "Recipe") -> None:
        objective, length = recipe.objective, recipe.sequence_length or spec.context_length
        kind = "next_token" if objective is None else objective.kind
        if not spec.shares_positions or kind not in PREDICTED_PER_POSITION:
            cause = f"supports only next_token and masked_token on decoders and encoders, not {kind} on {spec.kind}"
            raise SpecError(
                "parallel.context", cause, "set parallel.context to 1; to save memory, use shard, tensor or recompute"
            )
        if self.pipeline > 1:
            raise SpecError(
                "parallel.context", "cannot be combined with pipeline", "set parallel.context or parallel.pipeline to 1"
            )
        if spec.further_stack is not None:
            cause = "further_tokens read later tokens of the row, which other processes may have"
            raise SpecError("parallel.context", cause, "set parallel.context to 1, or remove further_tokens")
        if length % (pieces := 2 * self.context):
            cause = f"{length} is not divisible by {pieces}, twice parallel.context"
            raise SpecError("sequence_length", cause, f"use a multiple of {pieces}")
        for path, part in _contents(spec):
            if (reason := part.needs_whole_rows) is not None:
                raise SpecError(f"{path}.{reason.place}".rstrip("."), reason.cause, reason.remedy)

    def _check_pipeline(self, spec: ModelSpec, batch_size: int, micro_batch_size: int) -> None:
        if (field := next(filter(None, (stack.reads_tokens_at for stack in spec.stacks)), None)) is not None:
            cause = f"{field} reads token ids, which stages do not pass on"
            raise SpecError("parallel.pipeline", cause, "set parallel.pipeline to 1")
        if not spec.divides_into_stages:
            cause = "needs a decoder with an untied head, whose layers share no weights and read only the stream"
            raise SpecError("parallel.pipeline", cause, "set parallel.pipeline to 1, or head.tied to false")
        if self.shard > 1 or self.expert > 1:
            cause = "cannot be combined with shard or expert"
            raise SpecError("parallel.pipeline", cause, "use data_parallel and tensor")
        if spec.further_stack is not None:
            cause = "further_tokens need the first and the last stage"
            raise SpecError("parallel.pipeline", cause, "set parallel.pipeline to 1, or remove further_tokens")
        has_table = any(stack.relative_bias is not None for stack in spec.stacks)
        if has_table or any(part.adds_to_loss for _, part in _contents(spec)):
            cause = "stages do not pass on relative position tables or balance losses"
            raise SpecError("parallel.pipeline", cause, "set parallel.pipeline to 1")
        if self.pipeline > spec.num_layers:
            cause = f"{self.pipeline} stages are too many for {spec.num_layers} layers"
            raise SpecError("parallel.pipeline", cause, "use at most one stage per layer")
        for stack in spec.stacks:
            self._check_stages(stack)
        if batch_size % (rows_at_once := self.num_rows_shared * micro_batch_size):
            cause = f"a batch of {batch_size} rows cannot be split into micro-batches of {rows_at_once}"
            raise SpecError("parallel.pipeline", cause, "change batch_size or micro_batch_size")
        if self.schedule == "1f1b" and (count := batch_size // rows_at_once) < self.pipeline:
            cause = f"1f1b needs {self.pipeline} micro-batches, one per stage, but the batch has {count}"
            raise SpecError("parallel.pipeline", cause, "raise batch_size, lower micro_batch_size, or use gpipe")

    def _check_stages(self, stack: StackView) -> None:
        if not stack.residual.is_sum:
            cause = f"stages do not pass on residual {stack.residual.dump()['kind']}"
            raise SpecError("parallel.pipeline", cause, "set parallel.pipeline to 1, or remove residual")
        if (used := stack.used_of_other_stage(self.pipeline)) is not None:
            cause = f"layer {used[0]} uses the weights of layer {used[1]}, which is in another stage"
            raise SpecError(
                "parallel.pipeline", cause, "set parallel.pipeline to 1, or let layers of one stage share weights"
            )


def _contents(spec: ModelSpec) -> Iterator[tuple[str, InLayout]]:
    for stack in filter(None, (*spec.stacks, spec.further_stack)):
        yield from ((path, part) for _, path, part in stack.parts())


def _check_divides(size: str, divisor: int, name: str, total: int) -> None:
    if total % divisor:
        divisors = [str(count) for count in range(2, total + 1) if total % count == 0]
        remedy = f"use {', '.join(divisors)} or 1" if divisors else "use 1"
        raise SpecError(f"parallel.{size}", f"{divisor} does not divide the {total} of {name}", remedy)
