"""Cost of encoders."""

from typing import Any

from archetype.cost.formula import Counts, prefixed
from archetype.cost.registry import cost_of, linear
from archetype.cost.work import INT64, TrainingWork, Work
from archetype.models.cost import EmbeddedModelCost
from archetype.models.encoder import spec
from archetype.parts.head.cost import HeadCost


@cost_of(spec.Encoder)
class EncoderCost(EmbeddedModelCost):
    generates = False

    def __init__(self, model: Any) -> None:
        super().__init__(model, getattr(model, "vocab_size", 0))  # image encoders have no vocabulary
        self.pooler, self.pooling = model.pooler, getattr(model, "pooling", "first")
        self.head = HeadCost.of(model.head, self.d, getattr(model, "vocab_size", 0))

    def head_parameters(self) -> Counts:
        # the pooler is present with any head
        pooler = {"pooler": linear(self.d, self.d, bias=True)} if self.pooler else {}
        return pooler | super().head_parameters()

    def flops(self, work: Work) -> Counts:
        pooler = {"pooler": 2 * work.rows * self.d * self.d} if self.pooler and self.spec.head.classifies else {}
        # late pooling averages the logits of all tokens
        answered = work._replace(rows=work.answered_tokens) if self.pooling == "late" else work
        return pooler | prefixed("embedding.", self.embedding.flops(work)) | self.head.flops(answered)

    def saved_activations(self, work: TrainingWork) -> int:
        # ids that the lookup saves for its gradient
        token_types = work.tokens * INT64 if self.embedding.has_types else 0
        answered = work._replace(rows=work.tokens, length=1) if self.pooling == "late" else work
        return self.embedding.saved_activations(work) + self.head.saved_activations(answered) + token_types
