"""Costs of parts: the base class of each role, and the class registered for each kind.

A part's folder has a file `cost.py` with a class for each kind, registered for the specification class by `@cost_of`.
An extension's file registers its classes on import.

Parameters and FLOPs are formulas, one for each module. State and saved activations are plain numbers.

Saved activations are the bytes that autograd keeps from the forward pass until the backward pass. They are counted
tensor by tensor for the modules of this package: the input of each matrix product, once for all products that share
it; the input of each activation function, or its output if the derivative is a function of the output; both factors of
each elementwise product. In bfloat16 (autocast) products and activations take two bytes, norms and the residual stream
four, and each projection has its own cast input. For recurrent cells and scans, which kernels compute, the minimum that
any kernel must save is counted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Self

from typing_extensions import TypeVar

from archetype.cost.formula import ZERO, Counts, Formula, Symbol, symbol
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.registry import provided, provides

P = TypeVar("P", default=Any)  # the specification


class PartCost(Generic[P]):
    """Base class of the costs of parts.

    Args:
        d: features of its input and output vectors.
    """

    is_measured: ClassVar[bool] = False  # by running the module, which takes longer for a longer sequence

    def __init__(self, part: P, d: Formula) -> None:
        self.part, self.d = part, d

    @classmethod
    def of(cls, part: Spec, d: Formula, *sizes: Any) -> Self:
        """Return the cost of a part. `sizes` are further constructor arguments of the role.

        Raises:
            SpecError: no class is registered for the part, and the fallback cannot count it.
        """
        registered = cost_class(type(part))
        cost = registered(part, d, *sizes) if registered else _fallback and _fallback(part, d, *sizes)
        if not isinstance(cost, cls):
            name = type(part).__name__
            raise SpecError(
                "cost", f"no {cls.__name__} is registered for {name}", f"write a {cls.__name__} with @cost_of({name})"
            )
        return cost

    @property
    def symbols(self) -> dict[str, Symbol]:
        """Sizes by letter. Of two with one letter, such as the heads of an index, the first assigned counts."""
        sizes = [size for size in vars(self).values() if isinstance(size, Formula)]
        return {symbol.name: symbol for size in reversed(sizes) for symbol in size.symbols}


class Complexity(NamedTuple):
    """Complexity in O notation, without projections, which are O(T D^2) for a whole sequence."""

    text: str  # for a whole sequence
    token: str  # for one more token
    state: str  # of the state of one sequence


class Linear(NamedTuple):
    """A projection, whose sizes determine its parameters and FLOPs."""

    inputs: Formula
    outputs: Formula
    bias: bool = False

    @property
    def parameters(self) -> Formula:
        return linear(*self)

    def flops(self, tokens: Formula) -> Formula:
        return 2 * tokens * self.inputs * self.outputs  # a multiplication and an addition per weight and token


def projection_of(
    name: str, inputs: Formula, outputs: Formula, rank: int | None = None, bias: bool = False
) -> dict[str, Linear]:
    """Return a projection by name; with a rank two, as `weights.low_rank.add_projection` makes them."""
    if rank is None:
        return {name: Linear(inputs, outputs, bias)}
    low = symbol("r", rank)
    return {f"{name}_down": Linear(inputs, low), f"{name}_up": Linear(low, outputs, bias)}


class ProjectionsCost(PartCost[P], ABC):
    """Base class for costs of parts that consist of projections and products between them.

    Attributes:
        projections: projections and convolutions, by the names of their modules.
        vectors: all other parameters by name, such as norms, gains and rates.
    """

    def __init__(self, part: P, d: Formula) -> None:
        super().__init__(part, d)
        self.projections: dict[str, Linear] = {}
        self.vectors: dict[str, Formula] = {}

    def parameters(self) -> Counts:
        """Return the number of parameters of each module."""
        return self.projection_parameters() | self.vectors

    def projection_parameters(self) -> Counts:
        """Return the number of parameters of each projection."""
        return {name: projection.parameters for name, projection in self.projections.items()}

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        """Return the input and output features of each projection, except convolutions."""
        return {name: sizes[:2] for name, sizes in self.projections.items() if name != "conv"}

    def projection_flops(self, tokens: Formula) -> Counts:
        """Return the FLOPs of each projection for this many tokens."""
        return {name: projection.flops(tokens) for name, projection in self.projections.items()}

    @property
    def conv_state(self) -> int:
        """Number of earlier inputs that the convolution `conv` reads, of all channels; 0 without a convolution."""
        conv = self.projections.get("conv")
        return 0 if conv is None else (conv.inputs.value - 1) * conv.outputs.value

    def saved_steps(self, work: TrainingWork, numbers: int, exact: int = 0) -> int:
        """Return the bytes of the input, of further numbers of each token, and of the convolution's past inputs.

        Args:
            numbers: of the type of products.
            exact: numbers in float32.
        """
        token = (self.d.value + numbers) * work.itemsize + exact * FLOAT32
        return work.tokens * token + work.rows * self.conv_state * work.itemsize

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Return the bytes saved for backward."""

    def state(self, length: int) -> int:
        """Return the number of values in the state of one sequence with a capacity of `length` tokens."""
        return 0


class ContentCost(ProjectionsCost[P]):
    """Base class of the costs of mixers and feed-forward parts."""

    divides_state = False  # whether tensor parallelism splits its state
    state_period = 1  # tokens per step in which the state grows, such as those of a pooled key

    def active_parameters(self) -> Counts:
        """Return the number of parameters that one token uses, for each projection."""
        return self.parameters()

    def tables(self) -> Counts:
        """Return the width of each table with a row per token id, keyed by module (value embeddings)."""
        return {}

    def state_integers(self, length: int) -> int:
        """Return the number of 64-bit integers in the state, in addition to the values of `state`."""
        return 0

    def unread_state(self, length: int) -> int:
        """Return how many of the state's values the next token does not read, since an index selects others."""
        return 0

    def recurrent_state(self, length: int) -> int:
        """Return how many of the state's values are not keys and values: they have the data type of the weights."""
        return self.state(length)

    def key_scales(self, length: int) -> int:
        """Return how many vectors of keys and values there are, each of which has a scale in int8."""
        return 0

    def each(self) -> Iterator["ContentCost"]:
        yield self  # a cost that combines several parts overrides this

    @property
    def state_name(self) -> str:
        return f"{str(getattr(self.part, 'kind', type(self.part).__name__)).replace('_', ' ')} state"


class MixerCost(ContentCost[P]):
    """Base class of the costs of mixers."""

    complexity: Complexity
    differs_by_layer = False  # whether equal mixers in two layers compute different pairs

    @abstractmethod
    def flops(self, work: Work) -> Counts:
        """Return the FLOPs of each product in one forward pass."""

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Return {key: bytes} for tensors saved once for all layers with equal keys, such as rotary tables."""
        return {}

    def left_activations(self, work: TrainingWork) -> int:
        """Return the bytes published for later layers, which activation checkpointing does not free."""
        return 0


class FeedForwardCost(ContentCost[P]):
    """Base class of the costs of feed-forward parts."""

    @abstractmethod
    def flops(self, tokens: Formula) -> Counts:
        """Return the FLOPs of each product for this many tokens."""

    def hidden_gradient(self, work: TrainingWork) -> int:
        # bytes of the gradient of its hidden vectors, which the backward pass of a block allocates first
        return 0


class NormCost(PartCost[P], ABC):
    """Base class of the costs of norms. `d` is the number of normalized features."""

    @abstractmethod
    def parameters(self) -> Formula:
        """Return the number of trained parameters, without stored statistics."""

    def flops(self, tokens: Formula) -> Formula:
        return ZERO  # of matrix products

    @abstractmethod
    def saved_activations(self, vectors: int) -> int:
        """Return the bytes saved for `vectors` vectors: input, statistics, input of a separate weight product."""

    @property
    def saves_input(self) -> bool:
        """Whether it saves its input, which another norm of the same input then need not save."""
        return True

    def saved(self, vectors: int, work: TrainingWork) -> int:
        """Return all bytes saved for `vectors` vectors, with those that matrix products of the norm save."""
        return self.saved_activations(vectors) + vectors * self.saved_by_products * work.itemsize

    @property
    def saved_by_products(self) -> int:
        return 0  # numbers of each vector, of the type of products


class RouterCost(PartCost[P], ABC):
    """Base class of the costs of routers."""

    def __init__(self, part: P, d: Formula, num_experts: Formula) -> None:
        super().__init__(part, d)
        self.num_experts = num_experts

    @property
    def projection(self) -> Linear | None:
        return None  # the projection to logits, if the router has one

    @property
    def learns(self) -> bool:
        """Whether gradients flow to the routing weights of the selected experts."""
        return True

    @abstractmethod
    def parameters(self) -> Formula: ...

    @abstractmethod
    def flops(self, tokens: Formula) -> Formula: ...

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Return the bytes saved for the backward pass of logits, affinities and weights."""


class WiringCost(PartCost[P], ABC):
    """Base class of the costs of the norms around a block's sublayers."""

    @abstractmethod
    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Return the number of parameters of the first and second norm of a sublayer, such as `mixer`."""

    def own_parameters(self) -> Formula:
        return ZERO  # parameters of a block outside its contents and their norms

    def further_parameters(self, content: str) -> Counts:
        return {}  # of the block for one of its contents, besides its norms, by the end of the module's name

    def further_flops(self, content: str, tokens: Formula) -> Counts:
        return {}  # of the same modules

    def flops(self, tokens: Formula) -> Formula:
        return ZERO  # FLOPs of matrix products outside the contents and their norms

    def norm_flops(self, content: str, tokens: Formula) -> tuple[Formula, Formula]:
        """Return the FLOPs of the first and second norm of a sublayer."""
        return ZERO, ZERO

    @abstractmethod
    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        """Return the bytes that the norms around the sublayers save for backward, minus inputs that sublayers share."""


class ResidualCost(PartCost[P]):
    """Cost of reading and writing the residual stream for a sublayer or block. A plain sum costs nothing."""

    streams = 1  # residual vectors per position that the sublayer reads

    def at(self, layer: int, sublayer: int) -> "ResidualCost":
        """Return the cost for one sublayer of one layer (default: the same everywhere)."""
        return self

    def kind_of_layer(self, layer: int) -> Hashable:
        """Return a key that layers share if their sublayers cost the same."""
        return None

    def entry(self) -> "ResidualCost | None":
        """Return the cost of the weights that compute the stream from the stack's input, if there are any."""
        return None

    def exit(self, num_layers: int) -> "ResidualCost | None":
        """Return the cost of the weights that compute the stack's output from the stream, if there are any."""
        return None

    def parameters(self) -> Formula:
        return ZERO

    def flops(self, tokens: Formula) -> Formula:
        return ZERO

    def saved_activations(self, work: TrainingWork) -> int:
        return 0


class SelectionCost(ProjectionsCost[P]):
    """Base class of the costs of key selections.

    Args:
        d: features of the attention's input vectors.
        query: features of the vectors from which queries are computed.
    """

    def __init__(self, part: P, d: Formula, query: Formula) -> None:
        super().__init__(part, d)
        self.query = query

    @abstractmethod
    def flops(self, work: Work) -> Counts: ...  # as in MixerCost

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        return {}

    def saved_mask(self, work: TrainingWork) -> int:
        # attention saves the mask of chosen pairs as numbers that it adds to the scores; none if all keys are chosen
        leaves_out = self.most_keys(work.length) < work.length
        return leaves_out * work.tokens * work.length * work.itemsize

    def left_activations(self, work: TrainingWork) -> int:
        """Return the bytes of the mask published for later layers; none if all keys are chosen."""
        leaves_out = self.most_keys(work.length) < work.length
        return leaves_out * work.tokens * work.length

    def most_keys(self, length: int) -> int:
        """Return the largest number of keys that a query attends to in a sequence of `length` tokens."""
        return length


Fallback = Callable[..., PartCost | None]  # called like PartCost.of
Cost = TypeVar("Cost", bound=type[Any])

_fallback: Fallback | None = None


def cost_of(*parts: type[Spec]) -> Callable[[Cost], Cost]:
    """Register a cost class for these specifications, and for classes derived from them."""
    return provides("cost", *parts)


def cost_class(part: type[Spec]) -> Any | None:
    """Return the cost class registered for a part, or for its nearest base class."""
    return provided("cost", part)


def set_fallback(fallback: Fallback | None) -> None:
    """Set the function that counts parts without a registered cost, called like `PartCost.of`."""
    global _fallback
    _fallback = fallback


def linear(inputs: Formula, outputs: Formula, bias: bool = False) -> Formula:
    return inputs * outputs + outputs * bias
