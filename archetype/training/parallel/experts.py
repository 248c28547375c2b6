"""Expert parallelism: each process has some of the experts, and tokens travel to those they chose (Lepikhin 2020)."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from archetype.parts.experts.module import Experts
from archetype.training.parallel.tensor import Plan, distribute_parameters, use_local


def share_experts(model: nn.Module, mesh: DeviceMesh) -> list[Experts]:
    """Give each process of a mesh its experts, in place; every mixture of experts of the model."""
    mixtures = [module for module in model.modules() if isinstance(module, Experts)]
    for experts in mixtures:
        distribute_parameters(experts, mesh, _plan(experts))
        experts.exchange = partial(exchange, experts, mesh)
    return mixtures


def exchange(experts: Experts, mesh: DeviceMesh, x: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to the processes of its experts, and return what they send back, (N, k, D).

    Args:
        experts: with the parameters of this process's experts.
        mesh: of the processes that share the experts.
        x: tokens of this process, (N, D).
        chosen: the experts of each token, (N, k).
    """
    group, total = mesh.get_group(), experts.num_experts
    own, choices = total // mesh.size(), chosen.flatten()
    order = choices.argsort(stable=True)  # by expert, and so by the process that has it
    counts = torch.bincount(choices // own, minlength=mesh.size())
    sizes = counts.tolist(), _sent(counts, [1] * mesh.size(), [1] * mesh.size(), group).tolist()
    rows = _sent(x.index_select(0, order // chosen.shape[1]), *sizes, group)
    numbers = _sent(choices[order] % own, *sizes, group)
    swapped, experts.num_experts = [*use_local(experts, _plan(experts), 1)], own
    try:
        # a process that nobody chose still takes part in its experts' gradients
        outputs = experts.sorted_by_expert(rows, numbers[:, None])[:, 0] if len(rows) else _nothing(experts, rows)
    finally:
        experts.num_experts = total
        for owner, name, parameter in swapped:
            owner._parameters[name] = parameter
    return _sent(outputs, sizes[1], sizes[0], group).index_select(0, order.argsort()).view(*chosen.shape, -1)


def _sent(tensor: Tensor, sizes: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """The rows that all processes sent to this one, by an all-to-all exchange through which gradients travel back."""
    if tensor.requires_grad:
        result = collectives.all_to_all_single_autograd(tensor.contiguous(), received, sizes, group)
    else:
        result = collectives.all_to_all_single(tensor.contiguous(), received, sizes, group)
    complete: Tensor = collectives.wait_tensor(result)
    return complete


def _plan(experts: Experts) -> Plan:
    """Every parameter is a stack of all experts'."""
    return {name: Shard(0) for name, parameter in experts._parameters.items() if parameter is not None}


def _nothing(experts: Experts, rows: Tensor) -> Tensor:
    zero = sum(parameter.sum() for parameter in experts._parameters.values() if parameter is not None) * 0
    return rows + zero
