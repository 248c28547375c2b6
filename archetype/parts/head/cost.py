"""The cost of embeddings and heads."""

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import NormCost, linear
from archetype.cost.work import TrainingWork, Work
from archetype.parts.head import spec


class HeadCost:
    """The cost of the layers after a stack; none, where a model gives the vectors themselves."""

    tied = has_softcap = False
    vocab_size = num_features = 0  # of the table that logits are products with; none of a head for classes

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


Head = spec.LanguageModelHead | spec.MaskedLanguageModelHead | spec.ClassificationHead | spec.NoHead


class LanguageModelHeadCost(HeadCost):
    """Logits over the vocabulary, perhaps of transformed vectors; a tied head has no table of its own.

    Args:
        head: the specification.
        vocab_size: logits of each token.
        features: of the vectors that it reads.
    """

    def __init__(
        self, head: spec.LanguageModelHead | spec.MaskedLanguageModelHead, vocab_size: int, features: Formula
    ) -> None:
        self.head, self.tied, self.features, self.vocabulary = head, head.tied, features, symbol("V", vocab_size)
        self.vocab_size, self.num_features = vocab_size, features.value
        transform = head if isinstance(head, spec.MaskedLanguageModelHead) else head.transform
        self.norm = NormCost.of(transform.norm, features) if transform else None
        self.has_softcap = isinstance(head, spec.LanguageModelHead) and head.softcap is not None

    @property
    def num_weights(self) -> int:
        return self.vocabulary.value * self.features.value

    def parameters(self) -> Counts:
        """The table and bias of the logits, and the layer before them with its norm."""
        table = ZERO if self.tied else self.vocabulary * self.features
        logits = {"lm_head": table + self.vocabulary * self.head.bias}
        if self.norm is None:
            return logits
        dense = linear(self.features, self.features, bias=True)
        return {"lm_head.dense": dense, "lm_head.norm": self.norm.parameters()} | logits

    def flops(self, work: Work) -> Counts:
        """Logits of tokens."""
        tokens = work.answered_tokens
        dense = {"lm_head.dense": 2 * tokens * self.features * self.features} if self.norm else {}
        return dense | {"lm_head": 2 * tokens * self.vocabulary * self.features}

    def saved_activations(self, work: TrainingWork) -> int:
        """The input; of a layer before the logits also its activation and its norm; the logits that are capped."""
        saved = work.input_bytes(self.features.value)
        if self.norm is not None:
            saved = 3 * saved + self.norm.saved_activations(work.tokens)
        return saved + (work.tokens * self.vocabulary.value * work.itemsize if self.has_softcap else 0)

    def num_logits(self, rows: int, tokens: int) -> int:
        """Logits of every token."""
        return tokens * self.vocabulary.value


class ClassificationHeadCost(HeadCost):
    """Logits of classes for each row, after a pooler where there is one."""

    def __init__(self, head: spec.ClassificationHead, pooler: bool, d: Formula) -> None:
        self.classes, self.bias, self.pooler, self.d = symbol("Y", head.num_classes), head.bias, pooler, d

    @property
    def num_weights(self) -> int:
        return self.classes.value * self.d.value

    def parameters(self) -> Counts:
        """Parameters of the product with logits; the pooler belongs to the model, which has it with any head."""
        return {"classifier": linear(self.d, self.classes, bias=self.bias)}

    def flops(self, work: Work) -> Counts:
        """Logits of rows."""
        pooler = {"pooler": 2 * work.rows * self.d * self.d} if self.pooler else {}
        return pooler | {"classifier": 2 * work.rows * self.d * self.classes}

    def num_logits(self, rows: int, tokens: int) -> int:
        """Logits of every row."""
        return rows * self.classes.value


def head_cost(head: Head, d: Formula, vocab_size: int, pooler: bool = False) -> HeadCost:
    """The cost of what a model ends in.

    Args:
        head: the specification.
        d: features of the vectors that it reads.
        vocab_size: logits of each token.
        pooler: whether a layer stands before a classifier.
    """
    if isinstance(head, spec.ClassificationHead):
        return ClassificationHeadCost(head, pooler, d)
    if isinstance(head, spec.NoHead):
        return HeadCost()
    return LanguageModelHeadCost(head, vocab_size, d)
