"""Cost of a sentence head."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import cost_of, linear
from archetype.cost.work import TrainingWork, Work
from archetype.parts.head.cost import HeadCost
from archetype.parts.sentence_head import spec


@cost_of(spec.SentenceEmbeddingHead)
class SentenceEmbeddingHeadCost(HeadCost[spec.SentenceEmbeddingHead]):
    """Cost of the head's dense layers. Pooling and normalization have no weights and negligible FLOPs."""

    def __init__(self, part: spec.SentenceEmbeddingHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        widths = [symbol("D_s", layer.width) for layer in part.layers]
        self.sides = list(zip([len(part.pooling) * d, *widths], widths, strict=False))

    def parameters(self) -> Counts:
        return {
            f"sentence_head.layers.{index}": linear(*sides, bias=layer.bias)
            for index, (sides, layer) in enumerate(zip(self.sides, self.part.layers, strict=True))
        }

    def flops(self, work: Work) -> Counts:
        return {
            f"sentence_head.layers.{index}": 2 * work.rows * inner * outer
            for index, (inner, outer) in enumerate(self.sides)
        }

    def saved_activations(self, work: TrainingWork) -> int:
        # each layer's input, and what its activation saves
        features = sum(inner.value + 2 * outer.value for inner, outer in self.sides)
        return work.input_bytes(features, tokens=work.rows)
