"""Cost of n-gram models."""

from itertools import pairwise

from archetype.cost.formula import Counts, multiple, symbol
from archetype.cost.registry import cost_of, linear
from archetype.cost.work import INT64, TrainingWork, Work
from archetype.models.cost import ModelCost
from archetype.models.ngram import spec
from archetype.models.stack.cost import StatePart
from archetype.parts.head.cost import HeadCost


@cost_of(spec.NGram)
class NGramCost(ModelCost):
    """Cost of layers on the vectors of the newest n tokens, at positions with logits only."""

    def __init__(self, model: spec.NGram) -> None:
        super().__init__(model)
        self.n, d = model.n, symbol("D", model.d_model)
        self.table = symbol("V", model.vocab_size) * d
        widths = [symbol("n", model.n) * d, *(multiple("w", features, d) for features in model.hidden)]
        self.hidden = list(pairwise(widths))
        self.width = widths[-1]  # input features of the head
        self.head = HeadCost.of(model.head, self.width, model.vocab_size)

    def embedding_parameters(self) -> Counts:
        hidden = {f"hidden.{i}": linear(*widths, bias=True) for i, widths in enumerate(self.hidden)}
        return {"embedding.token": self.table} | hidden

    def flops(self, work: Work) -> Counts:
        tokens = work.answered_tokens
        hidden = {f"hidden.{i}": 2 * tokens * inputs * outputs for i, (inputs, outputs) in enumerate(self.hidden)}
        return hidden | super().flops(work)

    @property
    def state_names(self) -> list[str]:
        return ["newest tokens"] * (self.n > 1)

    def state_parts(self, length: int, source: int) -> list[StatePart]:
        return [StatePart("newest tokens", "ngram", (0,), 0, self.state(length)[1])]

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        # the newest tokens are read again with the next one
        return 0, self.n - 1

    def saved_activations(self, work: TrainingWork) -> int:
        hidden = sum(work.input_bytes(width.value) for widths in self.hidden for width in widths)
        return work.tokens * self.n * INT64 + hidden + self.head.saved_activations(work)
