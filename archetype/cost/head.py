"""The cost of embeddings and heads."""

from archetype import spec
from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.position import PositionCost
from archetype.cost.registry import NormCost, linear
from archetype.cost.work import INT64, TrainingWork, Work


class EmbeddingCost:
    """The cost of turning tokens into vectors.

    Args:
        embedding: the specification.
        vocabulary: V, or V_s.
        context_length: positions of a table of positions.
        d: d_model.
    """

    def __init__(self, embedding: spec.Embedding, vocabulary: Formula, context_length: int, d: Formula) -> None:
        self.embedding, self.vocabulary, self.context_length, self.d = embedding, vocabulary, context_length, d
        self.position, self.norm = PositionCost.of(embedding.position, d), NormCost.of(embedding.norm, d)
        self.max_length = context_length if self.position.limits_length else None

    def parameters(self) -> Counts:
        """Parameters, by module."""
        token_types = self.embedding.num_token_types
        return {
            "token": self.vocabulary * self.d,
            "position": self.position.parameters(self.context_length),
            "token_type": symbol("V_t", token_types) * self.d if token_types else ZERO,
            "norm": self.norm.parameters(),
        }

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of indices, and what the norm saves; a row of positions serves the whole batch."""
        tokens = work.rows * (work.length + 1) * INT64  # the text with its next token, of which the input is a view
        positions = work.length * INT64 if self.position.limits_length else 0
        return tokens + positions + self.norm.saved_activations(work.tokens)


class HeadCost:
    """The cost of the layers after a stack; none, where a model gives the vectors themselves."""

    tied = False

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
        transform = head if isinstance(head, spec.MaskedLanguageModelHead) else head.transform
        self.norm = NormCost.of(transform.norm, features) if transform else None
        self.has_softcap = isinstance(head, spec.LanguageModelHead) and head.softcap is not None

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


def encoder_head_cost(model: spec.Encoder | spec.VisionEncoder, d: Formula) -> HeadCost:
    """The cost of what an encoder ends in; pictures have no vocabulary."""
    if isinstance(model.head, spec.ClassificationHead):
        return ClassificationHeadCost(model.head, model.pooler, d)
    if isinstance(model, spec.Encoder) and isinstance(model.head, spec.MaskedLanguageModelHead):
        return LanguageModelHeadCost(model.head, model.vocab_size, d)
    return HeadCost()


def decoder_head_cost(model: spec.Decoder | spec.EncoderDecoder, d: Formula) -> HeadCost:
    """The cost of what a decoder ends in."""
    if isinstance(model.head, spec.ClassificationHead):
        return ClassificationHeadCost(model.head, False, d)
    return LanguageModelHeadCost(model.head, model.vocab_size, d)
