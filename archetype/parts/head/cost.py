"""Cost of heads."""

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import NormCost, P, PartCost, cost_of, linear
from archetype.cost.work import TrainingWork, Work
from archetype.parts.gain.cost import GainCost
from archetype.parts.head import spec


@cost_of(spec.NoHead)
class HeadCost(PartCost[P]):
    """Cost of the layers after a stack; zero by default.

    Args:
        vocab_size: number of logits per token.
    """

    tied = has_softcap = False
    vocab_size = num_features = 0  # shape of the table that gives logits; 0 without one

    def __init__(self, part: P, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d)

    @property
    def num_weights(self) -> int:
        """Number of weights in the output matrix, even if it is tied."""
        return 0

    def parameters(self) -> Counts:
        return {}

    def flops(self, work: Work) -> Counts:
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass, without the loss."""
        return 0

    def num_logits(self, rows: int, tokens: int) -> int:
        """Number of logits that the loss reads."""
        return 0


class TransformCost:
    """Cost of a dense layer and its norm before the logits; zero without this layer.

    Args:
        head: name of the head's module.
    """

    def __init__(self, part: spec.HeadTransform | None, d: Formula, head: str) -> None:
        self.part, self.d, self.head = part, d, head
        self.width = symbol("D_e", part.width) if part and part.width else d
        self.norm = NormCost.of(part.norm, self.width) if part else None

    def parameters(self) -> Counts:
        if self.part is None or self.norm is None:
            return {}
        dense = linear(self.d, self.width, bias=self.part.bias)
        return {f"{self.head}.dense": dense, f"{self.head}.norm": self.norm.parameters()}

    def flops(self, vectors: Formula) -> Counts:
        # a product of (N, D) and (D, D_e) has N D D_e multiplications and as many additions
        if self.part is None or self.norm is None:
            return {}
        norm = self.norm.flops(vectors)
        counts: Counts = {f"{self.head}.dense": 2 * vectors * self.d * self.width}
        return counts | ({f"{self.head}.norm": norm} if norm else {})

    def saved_activations(self, work: TrainingWork, vectors: int) -> int:
        # the dense layer's output, its activation, and what the norm saves
        if self.part is None or self.norm is None:
            return 0
        saved = 1 if self.part.activation.is_absent else 2
        return saved * work.input_bytes(self.width.value, tokens=vectors) + self.norm.saved(vectors, work)


@cost_of(spec.LanguageModelHead)
class LanguageModelHeadCost(HeadCost[spec.LanguageModelHead]):
    """Cost of logits over the vocabulary, optionally of transformed vectors. A tied head adds no table."""

    def __init__(self, part: spec.LanguageModelHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        self.tied, self.vocabulary = part.tied, symbol("V", vocab_size)
        self.transform = TransformCost(part.transform, d, "lm_head")
        self.width = self.transform.width
        self.vocab_size, self.num_features = vocab_size, self.width.value
        self.has_softcap = part.softcap is not None
        self.gain = GainCost(part.gain, self.vocabulary)

    @property
    def num_weights(self) -> int:
        return self.vocabulary.value * self.width.value

    def parameters(self) -> Counts:
        table = ZERO if self.tied else self.vocabulary * self.width
        bias = self.vocabulary * self.part.bias
        return self.transform.parameters() | {"lm_head": table + bias + self.gain.parameters()}

    def flops(self, work: Work) -> Counts:
        tokens = work.answered_tokens
        return self.transform.flops(tokens) | {"lm_head": 2 * tokens * self.vocabulary * self.width}

    def saved_activations(self, work: TrainingWork) -> int:
        # the input, the layer before the logits, and capped logits
        saved = work.input_bytes(self.d.value) + self.transform.saved_activations(work, work.tokens)
        saved += self.gain.saved_activations(work.tokens, work)
        return saved + (work.tokens * self.vocabulary.value * work.itemsize if self.has_softcap else 0)

    def num_logits(self, rows: int, tokens: int) -> int:
        return tokens * self.vocabulary.value


@cost_of(spec.MaskedLanguageModelHead, spec.MaskedLogitsHead)
class MaskedLanguageModelHeadCost(LanguageModelHeadCost):
    def __init__(self, part: spec.MaskedLanguageModelHead | spec.MaskedLogitsHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part.as_language_model_head, d, vocab_size)


@cost_of(spec.ClassificationHead, spec.TokenClassificationHead, spec.SpanHead)
class ClassificationHeadCost(HeadCost[spec.ClassHead]):
    """Cost of class logits for each row or token, optionally of transformed vectors."""

    def __init__(self, part: spec.ClassHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        self.classes = symbol("Y", part.num_classes)
        self.transform = TransformCost(part.transform, d, "classifier")

    @property
    def num_weights(self) -> int:
        return self.classes.value * self.transform.width.value

    def parameters(self) -> Counts:
        logits = linear(self.transform.width, self.classes, bias=self.part.bias)
        return self.transform.parameters() | {"classifier": logits}

    def flops(self, work: Work) -> Counts:
        answers = work.answered_tokens if self.part.labels_tokens else work.rows
        return self.transform.flops(answers) | {"classifier": 2 * answers * self.transform.width * self.classes}

    def saved_activations(self, work: TrainingWork) -> int:
        return self.transform.saved_activations(work, work.tokens if self.part.labels_tokens else work.rows)

    def num_logits(self, rows: int, tokens: int) -> int:
        return (tokens if self.part.labels_tokens else rows) * self.classes.value
