"""Tensor parallelism: processes share each matrix, according to the plan of its module (Shoeybi 2019).

All processes of a group have the same input vectors. In a module with a plan, each process computes its share of the
heads, experts or features, and the outputs of all processes are summed with one all-reduce in the forward pass. Another
all-reduce in the backward pass sums the gradients of the input. Inside these modules, parameters are plain tensors, so
that modules need no special code. Every process computes modules without a plan in full.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module

from archetype.roles.parallel import Cut, SplitPlan, TablePlan, Whole, plans_of

Swapped = tuple[nn.Module, str, Any]  # module, name, parameter


class InShares(ParallelStyle):
    """Tensor-parallel style: each process computes the module with its shards of the parameters."""

    def __init__(self, plan: SplitPlan) -> None:
        super().__init__()
        self.plan = plan

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        distribute_parameters(module, mesh, self.plan)
        self.plan.resize(mesh.get_local_rank())
        # filled before the forward pass and emptied after it: the module sees plain tensors in between
        swapped: list[Swapped] = []

        def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            swapped.extend(use_local(module, self.plan, mesh.size()))
            return tuple(self._input(value, mesh) for value in inputs)

        def after(module: nn.Module, inputs: Any, output: Any) -> Any:
            restore(swapped)
            swapped.clear()
            return None if output is None else self._output(output, mesh)  # None: the forward pass raised an exception

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
        return module

    def _input(self, value: Any, mesh: DeviceMesh) -> Any:
        # every process has the whole input, and the gradient of only its share of the part: Partial sums them
        if isinstance(value, DTensor):
            return value.to_local()
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])

    def _output(self, output: Tensor, mesh: DeviceMesh) -> Tensor:
        # an all-reduce of partial sums, or an all-gather of features, (B, T, F)
        if self.plan.gathered is None:
            shares = DTensor.from_local(output, mesh, [Partial()], run_check=False)
        else:
            shape = torch.Size((*output.shape[:-1], self.plan.gathered))
            stride = (shape[1] * shape[2], shape[2], 1)
            shares = DTensor.from_local(output, mesh, [Shard(2)], run_check=False, shape=shape, stride=stride)
        return shares.redistribute(mesh, [Replicate()]).to_local()


def distribute_parameters(module: nn.Module, mesh: DeviceMesh, plan: SplitPlan) -> None:
    """Replace the parameters that the plan names with DTensors."""
    for path, kind in plan.parameters.items():
        owner, name = _owner(module, path)
        if owner is not None and (parameter := owner._parameters.get(name)) is not None:
            placements = [Shard(kind.dim) if isinstance(kind, Cut) else Replicate()]
            # src_data_rank=None: no broadcast, because every process has built the same tensor
            share = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
            owner._parameters[name] = nn.Parameter(share, parameter.requires_grad)


def use_local(module: nn.Module, plan: SplitPlan, size: int) -> Iterator[Swapped]:
    """Replace a module's DTensors with this process's shards as plain tensors. Yield the replaced parameters."""
    for path, kind in plan.parameters.items():
        owner, name = _owner(module, path)
        parameters: dict[str, Any] = {} if owner is None else owner._parameters
        if owner is not None and isinstance(parameter := parameters.get(name), DTensor):
            yield owner, name, parameter
            if isinstance(kind, Cut):
                parameters[name] = parameter.to_local()
            else:
                # each process computes a share of the output, and so a share of this gradient
                whole = parameter.to_local(grad_placements=[Partial()])
                # outputs are summed over processes, so what is added once is divided by their number
                parameters[name] = whole / size if kind is Whole.ONCE else whole


def restore(swapped: list[Swapped]) -> None:
    for owner, name, parameter in swapped:
        owner._parameters[name] = parameter


def share_tensors(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Split the matrices of a model among the processes of a mesh.

    Returns:
        Paths of modules with matrices but without a plan, which stay whole.
    """
    styles: dict[str, ParallelStyle] = {}
    for path, module in model.named_modules():
        match plans_of(module).tensor(mesh.size()):
            case TablePlan(table=table):
                styles[f"{path}.{table}"] = RowwiseParallel(input_layouts=Replicate())
            case SplitPlan() as plan if all(name in plan.parameters for name, _ in module.named_parameters()):
                styles[path] = InShares(plan)
    parallelize_module(model, mesh, styles, src_data_rank=None)
    return [path for path, module in model.named_modules() if _is_replicated(path, module, styles)]


def _is_replicated(path: str, module: nn.Module, styles: dict[str, ParallelStyle]) -> bool:
    inside = any(path == name or path.startswith(f"{name}.") for name in styles)
    matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() > 1]
    return bool(matrices) and not inside


def _owner(module: nn.Module, path: str) -> tuple[nn.Module | None, str]:
    *above, name = path.split(".")
    owner: nn.Module | None = module
    for key in above:
        owner = getattr(owner, key, None)
    return owner, name
