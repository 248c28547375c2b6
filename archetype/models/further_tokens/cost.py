"""Cost of multi-token prediction, which runs only in training."""

from archetype.cost.formula import Counts, Formula, constant, total
from archetype.cost.registry import Linear, NormCost
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.models.further_tokens import spec
from archetype.models.stack.cost import StackCost
from archetype.models.stack.spec import StackView
from archetype.parts.head.cost import HeadCost


class FurtherTokensCost:
    """Cost of multi-token prediction. The model's `head` is applied to each predicted token."""

    def __init__(self, further: spec.FurtherTokens, stack: StackView, head: HeadCost) -> None:
        self.count, self.stack, self.head = further.count, StackCost(stack), head
        self.norm, self.projection = NormCost.of(further.norm, self.stack.d), Linear(2 * self.stack.d, self.stack.d)

    def parameters(self) -> Counts:
        norms, prefix = self.count * self.norm.parameters(), self.stack.prefix
        return {
            f"{prefix}hidden_norms": norms,
            f"{prefix}embedding_norms": norms,
            f"{prefix}projections": self.count * self.projection.parameters,
            f"{prefix}final_norms": norms,
        }

    def flops(self, work: Work) -> Formula:
        head, projection = total(self.head.flops(work).values()), self.projection.flops(work.tokens)
        blocks = [group.number * total(group.cost.flops(work).values()) for group in self.stack.groups]
        return self.count * (head + projection) + total(blocks)

    def product_weights(self) -> int:
        work = Work(constant(1), constant(1), "forward")
        weights = self.count * self.projection.parameters
        for group in self.stack.groups:
            parameters, products = group.cost.parameters(), group.cost.flops(work)
            # modules with FLOPs of matrix products and with parameters; the head is counted with the model
            weights += group.number * total(parameters[name] for name in products if name in parameters)
        return weights.value

    def saved_activations(self, work: TrainingWork) -> int:
        d, vectors = self.stack.d.value, work.tokens
        shared = vectors * d * FLOAT32 if work.compute_dtype == "float32" else 0  # the head has saved what a norm reads
        each = 3 * self.norm.saved_activations(vectors) - shared + work.input_bytes(2 * d)
        each += self.head.saved_activations(work) + vectors * INT64 + FLOAT32
        return self.count * each + self.stack.saved_activations(work).blocks
