"""The role of modules computed by several processes: how parameters are split, and which sums are needed.

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
    """A parameter split along one dimension, with one share per process."""

    dim: int


class Whole(Enum):
    """A parameter replicated in each process, used together with shares of others."""

    EACH = "used with each process's shares, so that its gradient is the sum of theirs"
    ONCE = "added to the sum of all processes' outputs, so that each adds its part"


Parameters = Mapping[str, Cut | Whole]  # by name within a module
COLUMN, ROW = Cut(0), Cut(1)  # of a matrix (outputs, inputs)
EACH, ONCE = Whole.EACH, Whole.ONCE


def _keep_sizes(rank: int) -> None:
    """Do nothing, for modules that store no sizes."""


@dataclass(frozen=True)
class SplitPlan:
    """Plan by which the processes of a group compute one module with shares of its parameters.

    Attributes:
        parameters: how each parameter is split; must cover all parameters, and may name missing ones.
        gathered: total output features, if each process computes some of them (None: the outputs are summed).
        resize: adapts sizes stored in the module to the process with the given rank.
    """

    parameters: Parameters
    gathered: int | None = None
    resize: Callable[[int], None] = _keep_sizes


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
    """Properties of a block's contents that a parallel layout checks."""

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        """{field of a recipe's `parallel`: {field of the part: size that the number of processes must divide}}."""
        return {}

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Why processes cannot split sequences by position (context parallelism); None if they can."""
        return None

    @property
    def adds_to_loss(self) -> bool:
        """Whether it adds a term to the training loss."""
        return False


class Plans(Generic[M]):
    """The parallelism plans of one module."""

    def __init__(self, module: M) -> None:
        self.module = module

    def tensor(self, size: int) -> SplitPlan | TablePlan | None:
        """Return the plan for tensor parallelism over `size` processes (Shoeybi 2019); None: replicate."""
        return None

    def expert(self, size: int) -> SplitPlan | None:
        """Return the plan for expert parallelism over `size` processes (Lepikhin 2020); None: replicate.

        The module then stores `num_experts` local experts, computes them by `sorted_by_expert`, and calls its
        `exchange` to send tokens to the experts that they chose.
        """
        return None

    def stage(self, index: int, num_stages: int) -> Any | None:
        """Return a module with the layers of one pipeline stage (Huang 2018); other layers are removed from the model.

        Its attribute `is_first` tells whether it reads tokens, `is_last` whether it returns logits.
        """
        return None


def stage_layers(index: int, num_stages: int, num_layers: int) -> range:
    """Return the indices of the layers of one pipeline stage."""
    first, last = (n * num_layers // num_stages for n in (index, index + 1))
    return range(first, last)


def plans_of(module: M) -> Plans[M]:
    """Return the plans registered for a module's class, or the default plans, which replicate."""
    return cast(type[Plans[M]], provided("parallel", type(module)) or Plans)(module)
