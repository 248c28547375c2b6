"""The cost of whole models: embedding, head, and which work goes through which stack in each phase.

A source is as long as its target unless `Work.source` says otherwise.
What does not generate (encoders) has only the phase `forward`.
"""

from abc import ABC, abstractmethod
from typing import Protocol, cast

from archetype.cost.formula import Counts, prefixed, symbol
from archetype.cost.registry import check_as_built, cost_class
from archetype.cost.work import TrainingWork, Work
from archetype.errors import SpecError
from archetype.models.further_tokens.cost import FurtherTokensCost
from archetype.models.spec import ModelSpec
from archetype.models.stack.cost import StackCost, StatePart
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost
from archetype.roles.embedding import TokenEmbedding


class ModelCost(ABC):
    """The cost of a model beside its stacks, and how it uses them."""

    generates = True  # whether it writes token by token
    reads = "sequences"  # what it reads: texts of any length, or images
    patch_size = 1  # tokens by which the state grows at once
    max_length: int | None = None  # the longest row that there are positions for, where that is limited
    head: HeadCost
    further_tokens: FurtherTokensCost | None = None  # what training alone computes

    def __init__(self, model: ModelSpec) -> None:
        self.spec, self.stacks = model, [StackCost(stack) for stack in model.stacks]

    @property
    def decoding_stacks(self) -> list[StackCost]:
        """The stacks that keep a state from token to token."""
        return self.stacks if self.generates else []

    @property
    def state_names(self) -> list[str]:
        """What the state is called, of each kind of content once."""
        blocks = [group.cost for stack in self.decoding_stacks for group in stack.groups]
        contents = [content for block in blocks for content in block.contents.values() if content.state(1)]
        return list(dict.fromkeys(content.state_name for content in contents))

    @abstractmethod
    def embedding_parameters(self) -> Counts:
        """Parameters of the modules before the stacks."""

    def head_parameters(self) -> Counts:
        """Parameters of the modules after the stacks."""
        return self.head.parameters()

    def stack_work(self, work: Work) -> dict[str, Work]:
        """The workload of each stack, by the stack's prefix; a stack that rests has none."""
        return {stack.prefix: work._replace(causal=stack.stack.causal) for stack in self.stacks}

    def flops(self, work: Work) -> Counts:
        """FLOPs of the modules before and after the stacks."""
        return self.head.flops(work)

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        """Numbers and integers in the state of one row.

        Args:
            length: tokens that it has room for.
            source: tokens of its source, where there is one (absent: as many).
        """
        return 0, 0

    def state_parts(self, length: int, source: int) -> list[StatePart]:
        """The state of one row by what holds it; arguments as of `archetype.estimate.state.state_parts`."""
        return [part for stack in self.decoding_stacks for part in stack.state_parts(length, source)]

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved before and after the stacks, without the loss."""


class EmbeddedModel(Protocol):
    """A specification of a model with one embedding."""

    d_model: int
    embedding: TokenEmbedding


class EmbeddedModelCost(ModelCost):
    """A model whose stacks read vectors of tokens or patches and their positions.

    Args:
        model: the specification, an `EmbeddedModel`.
        vocab_size: rows of the embedding's table; zero where it reads patches.
    """

    def __init__(self, model: ModelSpec, vocab_size: int) -> None:
        super().__init__(model)
        embedded = cast(EmbeddedModel, model)
        self.d = symbol("D", embedded.d_model)
        readers = [len(stack.readers) for stack in model.stacks if stack.layer_features]
        self.embedding = TokenEmbeddingCost.of(
            embedded.embedding, self.d, symbol("V", vocab_size), model.context_length, *readers
        )
        self.max_length = self.embedding.max_length

    def embedding_parameters(self) -> Counts:
        """Parameters of the tables of tokens, their types and positions."""
        return prefixed("embedding.", self.embedding.parameters())

    def flops(self, work: Work) -> Counts:
        """FLOPs of embedding and head."""
        return prefixed("embedding.", self.embedding.flops(work)) | super().flops(work)

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes that autograd saves of embedding and head."""
        return self.embedding.saved_activations(work) + self.head.saved_activations(work)


def model_cost(model: ModelSpec) -> ModelCost:
    """The cost of a model beside its stacks, and how it uses them.

    Raises:
        SpecError: nothing is registered for its kind, or a part from outside is not built as its cost counts it.
    """
    if (cost := cost_class(type(model))) is None:
        name = type(model).__name__
        raise SpecError("cost", f"no ModelCost is registered for {name}", f"write one, with @cost_of({name})")
    counted = cast(ModelCost, cost(model))
    check_as_built(counted)
    return counted
