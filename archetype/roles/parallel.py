"""Parallelism plans: how several processes split the parameters of a module, and how they combine its outputs.

The plans of a module are registered as capability `parallel` of its class, in the file `parallel.py` of its folder. A
module without a plan is replicated: every process computes all of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast

from archetype.spec.registry import provided

M = TypeVar("M")


@dataclass(frozen=True)
class Cut:
    """A parameter split along one dimension into one share per process."""

    dim: int


class Whole(Enum):
    """A parameter that each process holds in full."""

    EACH = "used with each process's shares, so that its gradient is the sum of theirs"
    ONCE = "added to the sum of all processes' outputs, so that each adds its part"


Parameters = Mapping[str, Cut | Whole]  # by name within a module
COLUMN, ROW = Cut(0), Cut(1)  # of a matrix (outputs, inputs)
EACH, ONCE = Whole.EACH, Whole.ONCE


@dataclass(frozen=True)
class SplitPlan:
    """Plan by which the processes of a group compute one module, each with a share of its parameters."""

    parameters: Parameters  # for every parameter; may contain names that the module does not have
    # total output features, if each process computes some of them (None: the outputs are summed)
    gathered: int | None = None
    resize: Callable[[int], None] = lambda rank: None  # adapts sizes stored in the module to the process with this rank


@dataclass(frozen=True)
class TablePlan:
    """A table split by rows: the looked-up vectors are summed over processes."""

    table: str  # name of the table in the module


class NeedsWholeRows(NamedTuple):
    """Why context parallelism is impossible: field, cause and remedy."""

    place: str
    cause: str
    remedy: str


class InLayout:
    """Properties of a sublayer that limit how processes can split it."""

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        """Sizes divisible by the number of processes: {field of a recipe's `parallel`: {field of the part: size}}."""
        return {}

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Why context parallelism, which splits sequences by position, is impossible; None if it is possible."""
        return None

    @property
    def adds_to_loss(self) -> bool:
        return False


class Plans(Generic[M]):
    """The parallelism plans of one module."""

    def __init__(self, module: M) -> None:
        self.module = module

    def tensor(self, size: int) -> SplitPlan | TablePlan | None:
        """Return the plan for tensor parallelism over `size` processes (Shoeybi 2019); None to replicate."""
        return None

    def expert(self, size: int) -> SplitPlan | None:
        """Return the plan for expert parallelism over `size` processes (Lepikhin 2020); None to replicate.

        The module then stores `num_experts` local experts, computes them by `sorted_by_expert`, and calls its
        `exchange` to send tokens to the processes of their experts.
        """
        return None

    def stage(self, index: int, num_stages: int) -> Any | None:
        """Return a module with the layers of one pipeline stage (Huang 2018), and remove other layers from the model.

        The attribute `is_first` tells whether it reads tokens, `is_last` whether it returns logits.
        """
        return None


def stage_layers(index: int, num_stages: int, num_layers: int) -> range:
    first, last = (n * num_layers // num_stages for n in (index, index + 1))
    return range(first, last)


def plans_of(module: M) -> Plans[M]:
    """Return the plans registered for a module's class, or the default plans, which replicate."""
    return cast(type[Plans[M]], provided("parallel", type(module)) or Plans)(module)
