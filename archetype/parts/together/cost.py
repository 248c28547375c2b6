"""Cost of parts on the same input: the sum of the parts' costs."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from archetype.cost.formula import Counts, Formula, Symbol, constant, prefixed
from archetype.cost.registry import Complexity, ContentCost, FeedForwardCost, MixerCost, NormCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.parts.convolutions.cost import ConvolutionsCost
from archetype.parts.together import spec


class TogetherCost(ContentCost):
    """Sum of the parts' costs. Their common input is saved once."""

    parts: tuple[Any, ...]

    @property
    def learns(self) -> bool:
        return bool(self.part.scales == "learned")

    @property
    def norms(self) -> dict[str, NormCost]:
        return {
            f"{name}.{index}": NormCost.of(norm, self.d)
            for name in ("norms", "post_norms")
            for index, norm in enumerate(getattr(self.part, name) or ())
        }

    @property
    def symbols(self) -> dict[str, Symbol]:
        return {name: symbol for part in reversed(self.parts) for name, symbol in part.symbols.items()}

    def parameters(self) -> Counts:
        return self._joined([part.parameters() for part in self.parts]) | self._own()

    def active_parameters(self) -> Counts:
        return self._joined([part.active_parameters() for part in self.parts]) | self._own()

    def tables(self) -> Counts:
        return self._joined([part.tables() for part in self.parts])

    def saved_activations(self, work: TrainingWork) -> int:
        outputs = len(self.parts) * work.input_bytes(self.d.value) if self.learns else 0  # which the scales multiply
        norms: int = sum(norm.saved_activations(work.tokens) for norm in self.norms.values())
        parts: int = sum(part.saved_activations(work) for part in self.parts)
        return outputs + norms + parts

    def state(self, length: int) -> int:
        return sum(part.state(length) for part in self.parts)

    def state_integers(self, length: int) -> int:
        return sum(part.state_integers(length) for part in self.parts)

    def recurrent_state(self, length: int) -> int:
        return sum(part.recurrent_state(length) for part in self.parts)

    def key_scales(self, length: int) -> int:
        return sum(part.key_scales(length) for part in self.parts)

    @property
    def state_name(self) -> str:
        return ", ".join(dict.fromkeys(part.state_name for part in self.parts if part.state(1)))

    def each(self) -> Iterator[ContentCost]:
        for part in self.parts:
            yield from part.each()

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        sizes: dict[str, tuple[Formula, Formula]] = {}
        for index, part in enumerate(self.parts):
            sizes |= {f"parts.{index}.{name}": size for name, size in part.projection_sizes().items()}
        return sizes

    def _own(self) -> Counts:
        scales = {"scales": constant(len(self.parts))} if self.learns else {}
        return scales | {name: norm.parameters() for name, norm in self.norms.items()}

    def _joined(self, counts: list[Counts]) -> Counts:
        joined: Counts = {}
        for index, part_counts in enumerate(counts):
            joined |= prefixed(f"parts.{index}.", part_counts)
        return joined


@cost_of(spec.MixersTogether)
class MixersTogetherCost(TogetherCost, MixerCost):
    def __init__(self, part: spec.MixersTogether, d: Formula) -> None:
        super().__init__(part, d)
        self.parts = tuple(MixerCost.of(inner, d) for inner in part.parts)
        # "O(T^2 D) + O(T D Z)": the sum of the parts' orders, each once
        each = zip(*(inner.complexity for inner in self.parts), strict=True)
        self.complexity = Complexity(*(" + ".join(dict.fromkeys(orders)) for orders in each))
        self.differs_by_layer = any(inner.differs_by_layer for inner in self.parts)

    def flops(self, work: Work) -> Counts:
        return self._joined([part.flops(work) for part in self.parts])

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        return {key: size for part in self.parts for key, size in part.shared_activations(work).items()}


@cost_of(spec.FeedForwardsTogether)
class FeedForwardsTogetherCost(TogetherCost, FeedForwardCost):
    def __init__(self, part: spec.FeedForwardsTogether, d: Formula) -> None:
        super().__init__(part, d)
        self.parts = tuple(FeedForwardCost.of(inner, d) for inner in part.parts)
        self.convolutions = ConvolutionsCost(part.convolutions, {"output": d})

    def parameters(self) -> Counts:
        return super().parameters() | self.convolutions.parameters()

    def active_parameters(self) -> Counts:
        return super().active_parameters() | self.convolutions.parameters()

    def flops(self, tokens: Formula) -> Counts:
        return self._joined([part.flops(tokens) for part in self.parts]) | self.convolutions.flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        return super().saved_activations(work) + self.convolutions.saved_activations(work)

    def state(self, length: int) -> int:
        return super().state(length) + self.convolutions.state()

    def recurrent_state(self, length: int) -> int:
        return super().recurrent_state(length) + self.convolutions.state()

    @property
    def state_name(self) -> str:
        return ", ".join(name for name in (super().state_name, "convolution" * bool(self.convolutions.state())) if name)

    def hidden_gradient(self, work: TrainingWork) -> int:
        return max(part.hidden_gradient(work) for part in self.parts)
