"""The cost of heads."""

from typing import Any

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import NormCost, PartCost, cost_of, linear
from archetype.cost.work import TrainingWork, Work
from archetype.parts.head import spec


class HeadCost(PartCost):
    """The cost of the layers after a stack; none, where a model gives the vectors themselves.

    Args:
        part: the specification.
        d: features of the vectors that it reads.
        vocab_size: logits of each token.
    """

    tied = has_softcap = False
    vocab_size = num_features = 0  # of the table that logits are products with, perhaps in chunks; none without one

    def __init__(self, part: Any, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d)

    @property
    def num_weights(self) -> int:
        """Numbers of the matrix that the logits are products with, a tied one too."""
        return 0

    def parameters(self) -> Counts:
        """Parameters, by module."""
        return {}

    def flops(self, work: Work) -> Counts:
        """FLOPs, by module."""
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass, without the loss."""
        return 0

    def num_logits(self, rows: int, tokens: int) -> int:
        """Numbers that the loss reads."""
        return 0


@cost_of(spec.NoHead)
class NoHeadCost(HeadCost):
    """The vectors themselves."""


@cost_of(spec.LanguageModelHead)
class LanguageModelHeadCost(HeadCost):
    """Logits over the vocabulary, perhaps of transformed vectors; a tied head has no table of its own."""

    part: spec.LanguageModelHead

    def __init__(self, part: spec.LanguageModelHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        self.tied, self.vocabulary = part.tied, symbol("V", vocab_size)
        self.width = symbol("D_e", part.table_width) if part.table_width else d
        self.vocab_size, self.num_features = vocab_size, self.width.value
        self.norm = NormCost.of(part.transform.norm, self.width) if part.transform else None
        self.has_softcap = part.softcap is not None

    @property
    def num_weights(self) -> int:
        return self.vocabulary.value * self.width.value

    def parameters(self) -> Counts:
        """The table and bias of the logits, and the layer before them with its norm."""
        table = ZERO if self.tied else self.vocabulary * self.width
        logits = {"lm_head": table + self.vocabulary * self.part.bias}
        if self.norm is None:
            return logits
        dense = linear(self.d, self.width, bias=self.part.transform is None or self.part.transform.bias)
        return {"lm_head.dense": dense, "lm_head.norm": self.norm.parameters()} | logits

    def flops(self, work: Work) -> Counts:
        """Logits of tokens."""
        tokens = work.answered_tokens
        dense = {"lm_head.dense": 2 * tokens * self.d * self.width} if self.norm else {}
        return dense | {"lm_head": 2 * tokens * self.vocabulary * self.width}

    def saved_activations(self, work: TrainingWork) -> int:
        """The input; of a layer before the logits also its activation and its norm; the logits that are capped."""
        saved = work.input_bytes(self.d.value)
        if self.norm is not None:
            is_plain = self.part.transform is not None and self.part.transform.activation.is_absent
            saved += (1 if is_plain else 2) * work.input_bytes(self.width.value)
            saved += self.norm.saved_activations(work.tokens)
        return saved + (work.tokens * self.vocabulary.value * work.itemsize if self.has_softcap else 0)

    def num_logits(self, rows: int, tokens: int) -> int:
        """Logits of every token."""
        return tokens * self.vocabulary.value


@cost_of(spec.MaskedLanguageModelHead)
class MaskedLanguageModelHeadCost(LanguageModelHeadCost):
    """Logits of transformed vectors."""

    def __init__(self, part: spec.MaskedLanguageModelHead, d: Formula, vocab_size: int) -> None:
        super().__init__(part.as_language_model_head, d, vocab_size)


@cost_of(spec.ClassificationHead, spec.TokenClassificationHead)
class ClassificationHeadCost(HeadCost):
    """Logits of classes for each row, or for each token."""

    part: spec.ClassificationHead | spec.TokenClassificationHead

    def __init__(
        self, part: spec.ClassificationHead | spec.TokenClassificationHead, d: Formula, vocab_size: int
    ) -> None:
        super().__init__(part, d, vocab_size)
        self.classes = symbol("Y", part.num_classes)

    @property
    def num_weights(self) -> int:
        return self.classes.value * self.d.value

    def parameters(self) -> Counts:
        """Weight and bias."""
        return {"classifier": linear(self.d, self.classes, bias=self.part.bias)}

    def flops(self, work: Work) -> Counts:
        """Logits of rows, or of tokens."""
        answers = work.answered_tokens if self.part.labels_tokens else work.rows
        return {"classifier": 2 * answers * self.d * self.classes}

    def num_logits(self, rows: int, tokens: int) -> int:
        """Logits of every row, or of every token."""
        return (tokens if self.part.labels_tokens else rows) * self.classes.value
