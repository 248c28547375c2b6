"""Expert parallelism: each process has some experts, and tokens are sent to the experts selected for them (Lepikhin
2020).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from archetype.roles.parallel import SplitPlan, plans_of
from archetype.training.parallel.tensor import distribute_parameters, restore, use_local


class SharedExperts(Protocol):
    """Mixture-of-experts module whose experts are split among processes."""

    num_experts: int  # of this process
    exchange: Callable[[Tensor, Tensor], Tensor] | None

    def sorted_by_expert(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the outputs of each token's experts, (N, k, D). `chosen` has indices among this process's experts."""


def share_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Remove the experts of other processes from every mixture of experts. Return the changed modules."""
    shared: list[nn.Module] = []
    for module in model.modules():
        if (plan := plans_of(module).expert(mesh.size())) is not None:
            distribute_parameters(module, mesh, plan)
            plan.resize(mesh.get_local_rank())
            experts: Any = module
            experts.exchange = partial(exchange, experts, plan, mesh)
            shared.append(module)
    return shared


def exchange(experts: SharedExperts, plan: SplitPlan, mesh: DeviceMesh, x: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to the processes of its experts. Return the experts' outputs, (N, k, D).

    Args:
        x: tokens of this process, (N, D).
        chosen: global indices of each token's experts, (N, k).
    """
    assert isinstance(experts, nn.Module)
    group, num_local, choices = mesh.get_group(), experts.num_experts, chosen.flatten()
    order = choices.argsort(stable=True)  # (N k,) by expert, and so by process: experts are split in order
    counts = torch.bincount(choices // num_local, minlength=mesh.size())  # tokens for each process
    # first exchange: how many rows each process will send to this one
    ones = [1] * mesh.size()
    # read from the device: the shapes of the exchange depend on the router's choices, here and in the other processes
    sent, received = torch.stack([counts, _sent(counts, ones, ones, group)]).tolist()
    # one row per choice, (received, D); order // k is the token of a choice
    rows = _sent(x.index_select(0, order // chosen.shape[1]), sent, received, group)
    local_ids = _sent(choices[order] % num_local, sent, received, group)
    # size 1: outputs are sent back, not summed, so nothing is divided by the number of processes
    swapped = [*use_local(experts, plan, 1)]
    try:
        # without tokens the experts still need (zero) gradients, since FSDP reduces them with the other processes
        outputs = experts.sorted_by_expert(rows, local_ids[:, None])[:, 0] if len(rows) else _nothing(experts, rows)
    finally:
        restore(swapped)
    # the same exchange backwards, then the inverse of the sort
    return _sent(outputs, received, sent, group).index_select(0, order.argsort()).view(*chosen.shape, -1)


def _sent(tensor: Tensor, sizes: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    # all-to-all; `sizes` are the rows for each process, `received` the rows from each
    if tensor.requires_grad:
        result = collectives.all_to_all_single_autograd(tensor.contiguous(), received, sizes, group)
    else:
        result = collectives.all_to_all_single(tensor.contiguous(), received, sizes, group)
    return collectives.wait_tensor(result)


def _nothing(experts: nn.Module, inputs: Tensor) -> Tensor:
    zero = sum(parameter.sum() for parameter in experts._parameters.values() if parameter is not None) * 0
    return inputs + zero
