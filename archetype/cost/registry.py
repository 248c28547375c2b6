"""Costs of parts: what the cost of each role has to answer, and which class answers for which kind.

A part's folder has a file `cost.py` with a class for each kind, registered for the specification's class by `@cost_of`;
an extension's file registers its classes when it is imported.

Parameters and FLOPs are formulas, by module. State and saved activations are plain numbers.

Saved activations are the bytes that autograd keeps from the forward pass until the backward pass has used them. They
are counted for this package's own modules, tensor by tensor: of every matrix product its input, once for all that read
it; of every activation function its input, or its output where the derivative is a function of that; of every product
both factors. In bfloat16 (autocast) products and activations take two bytes, norms and the residual stream four, and
every projection has an input of its own, cast for it. Of recurrent cells and scans, which kernels compute, the least
that a kernel must keep is counted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from archetype.cost.formula import ZERO, Counts, Formula, Symbol
from archetype.cost.work import TrainingWork, Work
from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.registry import provided, provides


class PartCost:
    """The cost of one part of a specification.

    Attributes:
        is_measured: whether it is counted by running the part's module, which takes as long as the text is.

    Args:
        part: the specification.
        d: features of the vectors that it reads and gives.
    """

    is_measured: ClassVar[bool] = False

    def __init__(self, part: Any, d: Formula) -> None:
        self.part, self.d = part, d

    @classmethod
    def of(cls, part: Spec, d: Formula, *sizes: Any) -> Self:
        """The cost of a part, by the class that is registered for its kind.

        Args:
            part: the specification.
            d: features of the vectors that it reads.
            sizes: what the costs of its role are told beside these.

        Raises:
            SpecError: nothing is registered for it, and no fallback counts it.
        """
        registered = cost_class(type(part))
        cost = registered(part, d, *sizes) if registered else _fallback and _fallback(part, d, *sizes)
        if not isinstance(cost, cls):
            name = type(part).__name__
            raise SpecError("cost", f"no {cls.__name__} is registered for {name}", f"write one, with @cost_of({name})")
        return cost

    @property
    def symbols(self) -> set[Symbol]:
        """The sizes that the part names."""
        return {one for size in vars(self).values() if isinstance(size, Formula) for one in size.symbols}


class Complexity(NamedTuple):
    """Orders of growth, without the projections, which take O(T D^2) for a text."""

    text: str  # of a whole text
    token: str  # of one more token
    state: str  # of the state of one row


class Linear(NamedTuple):
    """A projection: its sizes say its parameters and its FLOPs."""

    inputs: Formula
    outputs: Formula
    bias: bool = False

    @property
    def parameters(self) -> Formula:
        """Weight and bias."""
        return linear(*self)

    def flops(self, tokens: Formula) -> Formula:
        """Two for each weight and token."""
        return 2 * tokens * self.inputs * self.outputs


class ContentCost(PartCost, ABC):
    """The cost of a block's mixer or feed-forward part."""

    divides_state = False  # whether processes that share its heads share its state

    @abstractmethod
    def parameters(self) -> Counts:
        """Parameters, by projection."""

    def active_parameters(self) -> Counts:
        """Parameters that one token meets, by projection."""
        return self.parameters()

    def tables(self) -> Counts:
        """Features of each table that has a row for every token id of the vocabulary, by module."""
        return {}

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        """Inputs and outputs of each projection, where they are to be shown; a convolution is none."""
        return {}

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""

    def state(self, length: int) -> int:
        """Numbers in the state of one row with room for `length` tokens; none, where nothing is carried on."""
        return 0

    def each(self) -> Iterator["ContentCost"]:
        """The costs of the parts that it is made of: its own, unless it joins others."""
        yield self

    @property
    def state_name(self) -> str:
        """What its state is called."""
        return f"{str(getattr(self.part, 'kind', type(self.part).__name__)).replace('_', ' ')} state"


class MixerCost(ContentCost):
    """The cost of a mixer."""

    complexity: Complexity
    differs_by_layer = False  # whether equal mixers of two layers compute other pairs

    @abstractmethod
    def flops(self, work: Work) -> Counts:
        """FLOPs of one pass, by product."""

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, such as a table of angles, by what is shared."""
        return {}

    def left_activations(self, work: TrainingWork) -> int:
        """Bytes of what it leaves for later layers, which are held though its activations are computed again."""
        return 0


class FeedForwardCost(ContentCost):
    """The cost of a feed-forward part."""

    @abstractmethod
    def flops(self, tokens: Formula) -> Counts:
        """FLOPs of some tokens, by projection."""

    def hidden_gradient(self, work: TrainingWork) -> int:
        """Bytes of the gradient of its hidden vectors, with which a block's backward pass begins."""
        return 0


class NormCost(PartCost, ABC):
    """The cost of a norm; its width is the number of features that are normalized."""

    @abstractmethod
    def parameters(self) -> Formula:
        """Parameters; stored statistics are none."""

    @abstractmethod
    def saved_activations(self, vectors: int) -> int:
        """Bytes saved of some vectors: input, statistics, and what the weight multiplies where that is a step apart."""


class RouterCost(PartCost, ABC):
    """The cost of a router.

    Args:
        part: the specification.
        d: features of the vectors that it reads.
        num_experts: among which tokens choose.
    """

    def __init__(self, part: Any, d: Formula, num_experts: Formula) -> None:
        super().__init__(part, d)
        self.num_experts = num_experts

    @property
    def projection(self) -> Linear | None:
        """The projection to logits; None for a router without one."""
        return None

    @property
    def learns(self) -> bool:
        """Whether the weights of experts have a gradient."""
        return True

    @abstractmethod
    def parameters(self) -> Formula:
        """Parameters."""

    @abstractmethod
    def flops(self, tokens: Formula) -> Formula:
        """FLOPs of the logits of some tokens."""

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass of logits, affinities and weights."""


class WiringCost(PartCost, ABC):
    """The cost of the norms around a block's contents."""

    @abstractmethod
    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Parameters of the norm that is called after a content, such as `mixer`, and of its second one."""

    def own_parameters(self) -> Formula:
        """Parameters of a block beside its contents and their norms."""
        return ZERO

    def flops(self, tokens: Formula) -> Formula:
        """FLOPs beside those of the contents, where they are products."""
        return ZERO

    @abstractmethod
    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        """Bytes saved by the norms around some contents, less what contents share of their inputs."""


class ResidualCost(PartCost):
    """The cost of a residual wiring for one content of a block; a sum costs nothing."""

    streams = 1  # vectors of each position that go from content to content

    def parameters(self) -> Formula:
        """Parameters of what a content reads and how its output is written."""
        return ZERO

    def flops(self, tokens: Formula) -> Formula:
        """FLOPs of reading and writing, where they are products."""
        return ZERO

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass of reading and writing."""
        return 0


class SelectionCost(PartCost, ABC):
    """The cost of choosing the keys that each query of an attention sees.

    Args:
        part: the specification.
        d: features of the attention's vectors.
        query: features of the vectors from which it makes its queries.
    """

    def __init__(self, part: Any, d: Formula, query: Formula) -> None:
        super().__init__(part, d)
        self.query = query

    @abstractmethod
    def parameters(self) -> Counts:
        """Parameters, by projection."""

    @abstractmethod
    def flops(self, work: Work) -> Counts:
        """FLOPs of one pass, by product."""

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        """Inputs and outputs of each projection."""
        return {}

    def state(self, length: int) -> int:
        """Numbers that are kept of one row with room for `length` tokens."""
        return 0

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, by what is shared."""
        return {}

    def saved_mask(self, work: TrainingWork) -> int:
        """Bytes that the attention saves of the pairs that are left, as numbers that are added to its scores."""
        leaves_out = self.most_keys(work.length) < work.length
        return leaves_out * work.tokens * work.length * work.itemsize

    def most_keys(self, length: int) -> int:
        """The most keys that one query of a text of `length` tokens sees."""
        return length


Fallback = Callable[..., PartCost | None]  # as PartCost.of
Cost = TypeVar("Cost", bound=type[Any])
Block = TypeVar("Block")  # the cost of one

_fallback: Fallback | None = None


class AsBuilt(Protocol):
    """Counts models with parts from outside as they are built."""

    def layers(
        self, stack: Any, layers: Sequence[int], count: Callable[[], Any]
    ) -> Iterable[tuple[Sequence[int], Any]]:
        """Layers of equal specifications, apart where what is built of them differs.

        Args:
            stack: a `StackView`.
            layers: their places in it.
            count: makes the `BlockCost` of one.

        Returns:
            Places, and the cost of one of the layers there.
        """

    def check(self, cost: Any) -> None:
        """Refuse the cost of a model that its modules deny.

        Args:
            cost: a `ModelCost`.

        Raises:
            SpecError: names the part, what its cost counts, and what its module has.
        """


_as_built: AsBuilt | None = None


def cost_of(*parts: type[Spec]) -> Callable[[Cost], Cost]:
    """Class decorator: register a cost for the specifications of some parts, and for classes derived from them."""
    return provides("cost", *parts)


def cost_class(part: type[Spec]) -> Any | None:
    """The class that is registered for a part, or for the nearest class that it is derived from."""
    return provided("cost", part)


def set_fallback(fallback: Fallback | None) -> None:
    """Let a function count the parts for which nothing is registered.

    Args:
        fallback: from a part, its width and further sizes to the cost of its role, such as a `MixerCost`; None for no
            fallback.
    """
    global _fallback
    _fallback = fallback


def count_as_built(counter: AsBuilt | None) -> None:
    """Let models with parts from outside be counted as they are built."""
    global _as_built
    _as_built = counter


def layers_as_built(
    stack: Any, layers: Sequence[int], count: Callable[[], Block]
) -> Iterable[tuple[Sequence[int], Block]]:
    """As `AsBuilt.layers`; all together where nothing is from outside."""
    return [(layers, count())] if _as_built is None else _as_built.layers(stack, layers, count)


def check_as_built(cost: Any) -> None:
    """As `AsBuilt.check`; nothing where nothing is from outside."""
    if _as_built is not None:
        _as_built.check(cost)


def linear(inputs: Formula, outputs: Formula, bias: bool = False) -> Formula:
    """Parameters of a projection."""
    return inputs * outputs + outputs * bias
