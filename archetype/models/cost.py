"""Cost of whole models: embedding, head, and the work of each stack in each phase.

A source is as long as its target unless `Work.source` is set. Encoders, which do not generate, have only the phase
`forward`.
"""

from abc import ABC, abstractmethod
from math import lcm
from typing import Protocol, cast

from archetype.cost.as_built import check_as_built
from archetype.cost.formula import Counts, prefixed, symbol
from archetype.cost.registry import cost_class
from archetype.cost.work import TrainingWork, Work
from archetype.errors import SpecError
from archetype.models.further_tokens.cost import FurtherTokensCost
from archetype.models.spec import ModelSpec
from archetype.models.stack.cost import StackCost, StatePart
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost
from archetype.roles.embedding import TokenEmbedding


class ModelCost(ABC):
    """Base class of the costs of models: everything outside the stacks, and the work of the stacks."""

    generates = True  # whether it generates token by token
    reads = "sequences"  # input: sequences of any length, or images
    max_length: int | None = None  # maximal length, if positions are limited
    head: HeadCost
    further_tokens: FurtherTokensCost | None = None  # computed in training only

    def __init__(self, model: ModelSpec) -> None:
        self.spec, self.stacks = model, [StackCost(stack) for stack in model.stacks]

    @property
    def decoding_stacks(self) -> list[StackCost]:
        return self.stacks if self.generates else []

    @property
    def state_names(self) -> list[str]:
        blocks = [group.cost for stack in self.decoding_stacks for group in stack.groups]
        contents = [content for block in blocks for content in block.contents.values() if content.state(1)]
        return list(dict.fromkeys(content.state_name for content in contents))

    @property
    def state_period(self) -> int:
        """Tokens after which the state of each layer has grown in whole steps."""
        blocks = [group.cost for stack in self.decoding_stacks for group in stack.groups]
        contents = [content for block in blocks for content in block.contents.values()]
        return lcm(*(part.state_period for content in contents for part in content.each()))

    @abstractmethod
    def embedding_parameters(self) -> Counts:
        """Return the number of parameters of each module before the stacks."""

    def head_parameters(self) -> Counts:
        return self.head.parameters()

    def stack_work(self, work: Work) -> dict[str, Work]:
        """Return the work of each stack that runs in the phase, keyed by prefix."""
        return {stack.prefix: work._replace(causal=stack.stack.causal) for stack in self.stacks}

    def flops(self, work: Work) -> Counts:
        return self.head.flops(work)

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        """Return how many floating-point values and how many integers the state of one sequence has.

        Args:
            length: capacity in tokens.
            source: tokens per source, if there is one (absent: `length`).
        """
        return 0, 0

    def unread_state(self, length: int) -> int:
        """Return how many of the state's values the next token does not read; 0 if that is not counted."""
        return 0

    def state_parts(self, length: int, source: int) -> list[StatePart]:
        return [part for stack in self.decoding_stacks for part in stack.state_parts(length, source)]

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Return the bytes that modules outside the stacks keep for the backward pass, without the loss."""


class EmbeddedModel(Protocol):
    """A specification of a model with one embedding."""

    d_model: int
    embedding: TokenEmbedding


class EmbeddedModelCost(ModelCost):
    """Cost of a model with stacks that read embeddings of tokens or patches (`vocab_size` 0)."""

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
        return prefixed("embedding.", self.embedding.parameters())

    def flops(self, work: Work) -> Counts:
        return prefixed("embedding.", self.embedding.flops(work)) | super().flops(work)

    def saved_activations(self, work: TrainingWork) -> int:
        return self.embedding.saved_activations(work) + self.head.saved_activations(work)


def model_cost(model: ModelSpec) -> ModelCost:
    """Return the cost of a model.

    Raises:
        SpecError: its kind has no cost, or the cost of an extension's part does not match its module.
    """
    if (cost := cost_class(type(model))) is None:
        name = type(model).__name__
        raise SpecError("cost", f"no ModelCost is registered for {name}", f"write a ModelCost with @cost_of({name})")
    counted = cast(ModelCost, cost(model))
    # a part of an extension may be counted by its cost class otherwise than its module is built
    check_as_built(counted)
    return counted
