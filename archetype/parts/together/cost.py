"""The cost of several contents side by side: the sum of theirs."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from archetype.cost.formula import Counts, Formula, Symbol, prefixed
from archetype.cost.registry import Complexity, ContentCost, FeedForwardCost, MixerCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.parts.together import spec


class TogetherCost(ContentCost):
    """What the parts cost together; they save what they read once."""

    parts: tuple[Any, ...]

    @property
    def symbols(self) -> set[Symbol]:
        """The sizes that the parts name."""
        return {symbol for part in self.parts for symbol in part.symbols}

    def parameters(self) -> Counts:
        """Parameters, by part and projection."""
        return self._joined([part.parameters() for part in self.parts])

    def active_parameters(self) -> Counts:
        """Parameters that one token meets, by part and projection."""
        return self._joined([part.active_parameters() for part in self.parts])

    def tables(self) -> Counts:
        """Features of the tables by token id, by part."""
        return self._joined([part.tables() for part in self.parts])

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""
        return sum(part.saved_activations(work) for part in self.parts)

    def state(self, length: int) -> int:
        """Numbers in the states of one row together."""
        return sum(part.state(length) for part in self.parts)

    @property
    def state_name(self) -> str:
        """What the states are called."""
        return ", ".join(dict.fromkeys(part.state_name for part in self.parts if part.state(1)))

    def each(self) -> Iterator[ContentCost]:
        """The costs of the parts, and of those inside them."""
        for part in self.parts:
            yield from part.each()

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        """Inputs and outputs of each projection, by part."""
        sizes: dict[str, tuple[Formula, Formula]] = {}
        for index, part in enumerate(self.parts):
            sizes |= {f"parts.{index}.{name}": size for name, size in part.projection_sizes().items()}
        return sizes

    def _joined(self, counts: list[Counts]) -> Counts:
        joined: Counts = {}
        for index, one in enumerate(counts):
            joined |= prefixed(f"parts.{index}.", one)
        return joined


@cost_of(spec.MixersTogether)
class MixersTogetherCost(TogetherCost, MixerCost):
    """Mixers side by side."""

    def __init__(self, part: spec.MixersTogether, d: Formula) -> None:
        super().__init__(part, d)
        self.parts = tuple(MixerCost.of(inner, d) for inner in part.parts)
        self.complexity = Complexity(*(" + ".join(dict.fromkeys(orders)) for orders in zip(*map(_orders, self.parts))))  # noqa: B905
        self.differs_by_layer = any(inner.differs_by_layer for inner in self.parts)

    def flops(self, work: Work) -> Counts:
        """FLOPs of one pass, by part and product."""
        return self._joined([part.flops(work) for part in self.parts])

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, by what is shared."""
        return {key: size for part in self.parts for key, size in part.shared_activations(work).items()}


@cost_of(spec.FeedForwardsTogether)
class FeedForwardsTogetherCost(TogetherCost, FeedForwardCost):
    """Feed-forward parts side by side."""

    def __init__(self, part: spec.FeedForwardsTogether, d: Formula) -> None:
        super().__init__(part, d)
        self.parts = tuple(FeedForwardCost.of(inner, d) for inner in part.parts)

    def flops(self, tokens: Formula) -> Counts:
        """FLOPs of some tokens, by part and projection."""
        return self._joined([part.flops(tokens) for part in self.parts])

    def hidden_gradient(self, work: TrainingWork) -> int:
        """Bytes of the largest of their hidden gradients."""
        largest: int = max(part.hidden_gradient(work) for part in self.parts)
        return largest


def _orders(cost: MixerCost) -> Complexity:
    return cost.complexity
