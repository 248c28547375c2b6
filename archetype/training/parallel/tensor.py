"""Tensor parallelism: which dimension of each matrix is shared among processes, by the type of its part (Shoeybi 2019).

The processes of a group have the same vectors. A part with a plan computes its own heads, features or experts' features
from them, and the sum of what all processes computed is its output: one all-reduce in its forward pass and one, of the
gradients of its input, in backward. Inside, every parameter is this process's share, a plain tensor, so that no module
knows of it. A part without a plan is computed whole in every process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module

from archetype.parts.attention.module import Attention
from archetype.parts.embedding.module import Embedding
from archetype.parts.experts.module import Experts
from archetype.parts.feedforward.module import MLP, GatedMLP
from archetype.parts.head.module import LanguageModelHead
from archetype.parts.latent_attention.module import LatentAttention
from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.module import Alibi
from archetype.parts.position.spec import RelativeBias
from archetype.training.parallel.shards import local

COLUMN, ROW = Shard(0), Shard(1)  # of a matrix (outputs, inputs)
EACH = Replicate()  # used with every process's share, so that its gradient is the sum of theirs


@dataclass
class Once(Placement):
    """Added to the sum of all processes, so each of them adds its part."""


ONCE = Once()
Plan = dict[str, Placement]  # by the parameter's name inside the part
M = TypeVar("M", bound=nn.Module)
PLANS: dict[type[nn.Module], Callable[[Any, int, int], Plan | None]] = {}


def plan_for(*modules: type[nn.Module]) -> Callable[[Callable[[M, int, int], Plan | None]], Any]:
    """Function decorator: gives the plan of these modules.

    The function takes the module, the number of this process in its group and how many there are; it may change sizes
    that the module keeps beside its parameters. It returns None where this module has no plan.
    """

    def register(function: Callable[[M, int, int], Plan | None]) -> Callable[[M, int, int], Plan | None]:
        PLANS.update(dict.fromkeys(modules, function))
        return function

    return register


@plan_for(Attention)
def attention(module: Attention, rank: int, size: int) -> Plan | None:
    """Some heads for each process."""
    own, heads = module.spec, module.sizes
    relative = isinstance(own.position, RelativeBias) or any(True for _ in _parameters(module.score_bias))
    if heads.num_heads % size or heads.num_kv_heads % size or relative or module.q_global is not None:
        return None
    if own.qk_norm_over == "all" and not isinstance(own.qk_norm, NoNorm):
        return None
    module.sizes = heads._replace(num_heads=heads.num_heads // size, num_kv_heads=heads.num_kv_heads // size)
    if isinstance(module.score_bias, Alibi):
        share = module.sizes.num_heads
        module.score_bias.slopes = module.score_bias.slopes[rank * share : (rank + 1) * share]
    columns = ("q.weight", "k.weight", "v.weight", "q.bias", "k.bias", "v.bias", "gate.weight", "sinks", "score")
    norms = (f"{norm}.{name}" for norm in ("q_norm", "k_norm") for name in ("weight", "bias"))
    return {**dict.fromkeys(columns, COLUMN), **dict.fromkeys(norms, EACH), "o.weight": ROW, "o.bias": ONCE}


@plan_for(LatentAttention)
def latent_attention(module: LatentAttention, rank: int, size: int) -> Plan | None:
    """Some heads for each process; the latents are the same for all."""
    if module.spec.num_heads % size:
        return None
    module.spec = module.spec.replace(num_heads=module.spec.num_heads // size)
    shared = ("q_down.weight", "q_down.bias", "q_norm.weight", "kv_down.weight", "kv_down.bias", "kv_norm.weight")
    columns = ("q.weight", "q_up.weight", "kv_up.weight")
    return {**dict.fromkeys(columns, COLUMN), **dict.fromkeys(shared, EACH), "o.weight": ROW, "o.bias": ONCE}


@plan_for(MLP, GatedMLP)
def feedforward(module: MLP | GatedMLP, rank: int, size: int) -> Plan | None:
    """Some features for each process."""
    if module.up.out_features % size:
        return None
    columns = ("gate.weight", "gate.bias", "up.weight", "up.bias")
    return {**dict.fromkeys(columns, COLUMN), "down.weight": ROW, "down.bias": ONCE}


@plan_for(Experts)
def experts(module: Experts, rank: int, size: int) -> Plan | None:
    """Some features of every expert for each process."""
    if module.down.shape[2] % size:  # type: ignore[index]  # (E, D, F)
        return None
    columns = ("gate", "up", "gate_bias", "up_bias")
    return {**dict.fromkeys(columns, Shard(1)), "down": Shard(2), "down_bias": ONCE}


class SumOfShares(ParallelStyle):
    """A part whose output is the sum of what its processes compute with their shares of its parameters."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        distribute_parameters(module, mesh, self.plan)
        swapped: list[tuple[nn.Module, str, nn.Parameter]] = []

        def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            swapped.extend(use_local(module, self.plan, mesh.size()))
            return tuple(map(sum_gradients, inputs))

        def sum_gradients(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            whole = DTensor.from_local(value, mesh, [Replicate()], run_check=False)
            return whole.to_local(grad_placements=[Partial()])

        def after(module: nn.Module, inputs: Any, output: Any) -> Any:
            while swapped:
                owner, name, parameter = swapped.pop()
                owner._parameters[name] = parameter
            if output is None:  # an exception is on its way
                return output
            return DTensor.from_local(output, mesh, [Partial()], run_check=False).redistribute(mesh, [EACH]).to_local()

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
        return module


class VocabularyOfLogits(ParallelStyle):
    """A head that gives the logits of its share of the vocabulary; they are gathered before the loss."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.plan: Plan = {"weight": COLUMN, "bias": COLUMN}

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        names = dict(module.named_parameters())
        self.plan |= {name: EACH for name in names if name not in self.plan}  # of a transform before the product
        distribute_parameters(module, mesh, self.plan)
        swapped: list[tuple[nn.Module, str, nn.Parameter]] = []

        def before(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            swapped.extend(use_local(module, self.plan, mesh.size()))
            x, embedding = inputs
            whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
            return whole.to_local(grad_placements=[Partial()]), local(embedding)

        def after(module: nn.Module, inputs: Any, output: Any) -> Any:
            while swapped:
                owner, name, parameter = swapped.pop()
                owner._parameters[name] = parameter
            if output is None:
                return output
            shape = torch.Size((*output.shape[:-1], self.vocab_size))
            stride = (shape[1] * shape[2], shape[2], 1)
            share = DTensor.from_local(output, mesh, [Shard(2)], run_check=False, shape=shape, stride=stride)
            return share.redistribute(mesh, [EACH]).to_local()

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
        return module


def distribute_parameters(module: nn.Module, mesh: DeviceMesh, plan: Plan) -> None:
    """Make the planned parameters of a module DTensors, of which this process holds its share."""
    for path, placement in plan.items():
        owner, name = _owner(module, path)
        if owner is not None and (parameter := owner._parameters.get(name)) is not None:
            places = [EACH if isinstance(placement, Once) else placement]
            share = distribute_tensor(parameter.detach(), mesh, places, src_data_rank=None)
            owner._parameters[name] = nn.Parameter(share, parameter.requires_grad)


def use_local(module: nn.Module, plan: Plan, size: int) -> Iterator[tuple[nn.Module, str, Any]]:
    """Put this process's shares in the places of parameters; what was there before."""
    for path, placement in plan.items():
        owner, name = _owner(module, path)
        parameters: dict[str, Any] = {} if owner is None else owner._parameters
        if owner is not None and isinstance(parameter := parameters.get(name), DTensor):
            yield owner, name, parameter
            if isinstance(placement, Shard):
                parameters[name] = parameter.to_local()
            else:
                whole = parameter.to_local(grad_placements=[Partial()])
                parameters[name] = whole / size if isinstance(placement, Once) else whole


def share_tensors(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Share the matrices of a model among the processes of a mesh.

    Returns:
        The paths of parts that have parameters and no plan.
    """
    styles: dict[str, ParallelStyle] = {}
    for path, module in model.named_modules():
        plan = PLANS[type(module)](module, mesh.get_local_rank(), mesh.size()) if type(module) in PLANS else None
        if plan is not None:
            styles[path] = SumOfShares(plan)
        elif isinstance(module, Embedding):
            styles[f"{path}.token"] = RowwiseParallel(input_layouts=Replicate())
        elif isinstance(module, LanguageModelHead):
            styles[path] = VocabularyOfLogits(_num_logits(model, module))
    parallelize_module(model, mesh, styles, src_data_rank=None)
    return [path for path, module in model.named_modules() if _is_replicated(path, module, styles)]


def _num_logits(model: nn.Module, head: LanguageModelHead) -> int:
    embedding: Any = model.get_submodule("embedding")
    weight = embedding.token.weight if head.weight is None else head.weight
    return int(weight.shape[0])


def _is_replicated(path: str, module: nn.Module, styles: dict[str, ParallelStyle]) -> bool:
    """Whether a part has matrices of its own that every process computes with whole."""
    inside = any(path == name or path.startswith(f"{name}.") for name in styles)
    matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() > 1]
    return bool(matrices) and not inside


def _owner(module: nn.Module, path: str) -> tuple[nn.Module | None, str]:
    *above, name = path.split(".")
    owner: nn.Module | None = module
    for key in above:
        owner = getattr(owner, key, None)
    return owner, name


def _parameters(module: nn.Module | None) -> Iterator[nn.Parameter]:
    return iter(()) if module is None else module.parameters()
