"""The role of modules that several processes compute together: how parameters are cut, and which sums follow.

The plans of a module are the capability `parallel` of its class, in the file `parallel.py` of its folder. A module
without one, or without the plan that is asked for, is computed whole by every process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast

from archetype.spec.registry import provided

M = TypeVar("M")


@dataclass(frozen=True)
class Cut:
    """Each process has a share of a parameter, cut along one dimension."""

    dim: int


class Whole(Enum):
    """A parameter that each process has whole, beside its shares of others."""

    EACH = "used with each process's shares, so that its gradient is the sum of theirs"
    ONCE = "added to the sum of all processes' outputs, so that each adds its part"


Parameters = Mapping[str, Cut | Whole]  # by their names inside a module
COLUMN, ROW = Cut(0), Cut(1)  # of a matrix (outputs, inputs)
EACH, ONCE = Whole.EACH, Whole.ONCE


def _keep_sizes(number: int) -> None:
    """Nothing, for a module that keeps no sizes beside its parameters."""


@dataclass(frozen=True)
class SplitPlan:
    """How the processes of a group compute one module, each with its share of the parameters.

    Attributes:
        parameters: how each is cut; it may name some that this module lacks, and must leave none out.
        gathered: features of the outputs, where each process gives some of them (None: the outputs are summed).
        resize: lets the sizes that the module keeps beside its parameters be those of the process with a number.
    """

    parameters: Parameters
    gathered: int | None = None
    resize: Callable[[int], None] = _keep_sizes


@dataclass(frozen=True)
class TablePlan:
    """Each process has some rows of a table, and the vectors that it looks up are summed.

    Attributes:
        table: name of the table inside the module.
    """

    table: str


class NeedsWholeRows(NamedTuple):
    """Why processes cannot share the positions of a row: the field, the cause and the remedy."""

    place: str
    cause: str
    remedy: str


class InLayout:
    """Base of the contents of a block, as a layout of processes is checked against them."""

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        """By a field of a recipe's `parallel`, the fields whose sizes that number of processes must divide."""
        return {}

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Why processes cannot share the positions of its rows; None where they can."""
        return None

    @property
    def adds_to_loss(self) -> bool:
        """Whether it adds a loss of its own while training."""
        return False


class Plans(Generic[M]):
    """The plans of one module.

    Args:
        module: that several processes are to compute.
    """

    def __init__(self, module: M) -> None:
        self.module = module

    def tensor(self, size: int) -> SplitPlan | TablePlan | None:
        """The plan of `size` processes that share matrices, all of which have the same vectors (Shoeybi 2019)."""
        return None

    def expert(self, size: int) -> SplitPlan | None:
        """The plan of `size` processes that share experts (Lepikhin 2020).

        The module then has `num_experts` of its own, computes them by `sorted_by_expert`, and calls its `exchange` for
        those that each token chose.
        """
        return None

    def stage(self, number: int, num_stages: int) -> Any | None:
        """A module of some of the layers, for a pipeline of stages (Huang 2018); the parts of others leave the model.

        It says whether it `is_first`, which reads tokens, and whether it `is_last`, which gives logits.
        """
        return None


def stage_layers(number: int, num_stages: int, num_layers: int) -> range:
    """The layers of one of a pipeline's stages, among which they are divided in their order."""
    first, last = (n * num_layers // num_stages for n in (number, number + 1))
    return range(first, last)


def plans_of(module: M) -> Plans[M]:
    """The plans of a module; none of its own where its class has no `parallel`."""
    return cast(type[Plans[M]], provided("parallel", type(module)) or Plans)(module)
