"""Check of tensor parallelism."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archetype.checking.passes import EXACT
from archetype.checking.subject import Inapplicable, Subject, Violated
from archetype.nn.comparison import distance
from archetype.nn.context import ForwardContext
from archetype.roles.parallel import Cut, SplitPlan, TablePlan, Whole, plans_of

PROCESSES = 2


class Table(NamedTuple):
    """Argument that is a table whose rows are split among processes, such as the embedding of a tied head."""

    rows: Tensor


def shares_sum_to_whole(subject: Subject) -> None:
    """Check that the outputs of a module's tensor-parallel shares add up or concatenate to its whole output."""
    modules = dict(subject.model.named_modules())
    planned = {path: module for path, module in modules.items() if isinstance(_plan(module), SplitPlan)}
    calls = _calls(subject, planned)
    is_split, left = False, [dict[int, Any]() for _ in range(PROCESSES)]
    for path, (arguments, whole) in calls.items():
        results: list[Tensor] = []
        gathers = False
        for rank in range(PROCESSES):
            module = copy.deepcopy(planned[path])
            plan = _plan(module)
            if not isinstance(plan, SplitPlan) or not {*dict(module.named_parameters())} <= {*plan.parameters}:
                break  # a plan must cover all parameters
            for name, parameter in module.named_parameters():
                parameter.data = _share(parameter.data, plan.parameters[name], rank)
            plan.resize(rank)
            gathers = plan.gathered is not None
            results.append(module(*(_alone(argument, rank, left[rank]) for argument in copy.deepcopy(arguments))))
        if len(results) == PROCESSES:
            is_split = True
            joined = torch.cat(results, -1) if gathers else sum(results[1:], results[0])
            if (difference := distance(joined, whole)) > EXACT:
                raise Violated(f"the sum of the shares of {path} differs from the whole by {difference:.0e}")
    if not is_split:
        raise Inapplicable("has no plan: every process computes all of it")


def _plan(module: nn.Module) -> SplitPlan | TablePlan | None:
    return plans_of(module).tensor(PROCESSES)


def _calls(subject: Subject, modules: dict[str, nn.Module]) -> dict[str, tuple[Any, Tensor]]:
    # arguments and output of each module in one pass
    calls: dict[str, tuple[Any, Tensor]] = {}
    plans = ((module, _plan(module)) for module in subject.model.modules())
    tables = [module.get_submodule(plan.table).weight for module, plan in plans if isinstance(plan, TablePlan)]
    handles = []
    for path, module in modules.items():

        def keep(module: nn.Module, arguments: Any, result: Tensor, path: str = path) -> None:
            inputs = (Table(x) if any(x is table for table in tables) else x for x in arguments)
            calls[path] = copy.deepcopy(tuple(inputs)), result.clone()

        handles.append(module.register_forward_hook(keep))
    try:
        subject.model(**subject.inputs())
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _alone(argument: Any, rank: int, left: dict[int, Any]) -> Any:
    # the argument of one process: its rows of a table, or a context with the results of its own earlier layers
    if isinstance(argument, Table):
        return torch.chunk(argument.rows, PROCESSES)[rank]
    return replace(argument, shared={}, left=left) if isinstance(argument, ForwardContext) else argument


def _share(tensor: Tensor, share: Cut | Whole, rank: int) -> Tensor:
    # a piece; all of it; or an equal part of a term, which is added once in total
    if isinstance(share, Cut):
        return torch.chunk(tensor, PROCESSES, share.dim)[rank].clone()
    return tensor / PROCESSES if share is Whole.ONCE else tensor
