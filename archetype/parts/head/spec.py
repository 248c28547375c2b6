"""Heads: compute a model's result from its final vectors."""

from typing import ClassVar, Literal

from archetype.parts.activation.spec import GELU
from archetype.parts.gain.spec import Gain
from archetype.parts.norm.spec import NoNorm
from archetype.roles.activation import FixedActivation
from archetype.roles.head import Head
from archetype.roles.norm import AnyNorm
from archetype.spec.base import Flag, Positive, Probability, Size, Spec
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = [
    "ClassificationHead",
    "HeadTransform",
    "LanguageModelHead",
    "MaskedLanguageModelHead",
    "MaskedLogitsHead",
    "NoHead",
    "SpanHead",
    "TokenClassificationHead",
]


class HeadTransform(Spec):
    """Dense layer and norm before the logits (BERT as a decoder; OPT 350M, without activation, bias and norm).

    Attributes:
        activation: activation of the layer.
        norm: norm of the layer's output.
        width: width of the layer's output (absent: d_model).
        bias: whether the layer has a bias.
    """

    activation: FixedActivation = GELU()
    norm: AnyNorm = NoNorm()
    width: Width | None = None
    bias: Flag = True


@part
class LanguageModelHead(Head):
    """Logits over the vocabulary, optionally after a transform. `tied` shares the embedding matrix.

    Vectors are first multiplied by `scale` (T5); `softcap` c changes a logit z to c tanh(z / c) (Gemma 2).

    Attributes:
        tied: whether the head shares the embedding matrix.
        bias: whether the logits have a bias.
        scale: factor on the vectors.
        gain: learned factor on each logit (absent: none; nGPT).
        softcap: c in c tanh(z / c) (absent: no cap).
        transform: layer before the logits (absent: none).
    """

    predicts_next: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["language_model"] = "language_model"
    tied: Flag = False
    bias: Flag = False
    scale: Positive = 1.0
    gain: Gain | None = None
    softcap: Positive | None = None
    transform: HeadTransform | None = None

    @property
    def table_width(self) -> int | None:
        return self.transform.width if self.transform else None

    @property
    def shares_table(self) -> bool:
        return self.tied


@part
class MaskedLanguageModelHead(Head):
    """Logits of masked tokens: dense layer, norm, projection to the vocabulary (Devlin 2018).

    Attributes:
        activation: activation of the layer.
        norm: norm of the layer's output.
        width: width of the layer's output (absent: d_model).
        tied: whether the head shares the embedding matrix.
        bias: whether the logits have a bias.
        dense_bias: whether the layer has a bias.
    """

    predicts_masked: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["masked_language_model"] = "masked_language_model"
    activation: FixedActivation = GELU()
    norm: AnyNorm = NoNorm()
    width: Width | None = None
    tied: Flag = True
    bias: Flag = True
    dense_bias: Flag = True

    @property
    def table_width(self) -> int | None:
        return self.width

    @property
    def shares_table(self) -> bool:
        return self.tied

    @property
    def as_language_model_head(self) -> LanguageModelHead:
        transform = HeadTransform(activation=self.activation, norm=self.norm, width=self.width, bias=self.dense_bias)
        return LanguageModelHead(tied=self.tied, bias=self.bias, transform=transform)


@part
class MaskedLogitsHead(Head):
    """Logits of masked tokens, projected directly from their vectors (EuroBERT; Boizard 2025).

    Attributes:
        tied: whether the head shares the embedding matrix.
        bias: whether the logits have a bias.
        shifted: whether a token's logits come from the previous token's vector, as in a decoder (Dream; Ye 2025). The
            first token's logits come from its own vector.
    """

    predicts_masked: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["masked_logits"] = "masked_logits"
    tied: Flag = False
    bias: Flag = False
    shifted: Flag = False

    @property
    def shares_table(self) -> bool:
        return self.tied

    @property
    def is_shifted(self) -> bool:
        return self.shifted

    @property
    def as_language_model_head(self) -> LanguageModelHead:
        return LanguageModelHead(tied=self.tied, bias=self.bias)


class ClassHead(Head):
    """Base class of classification heads.

    Attributes:
        num_classes: number of classes, Y.
        dropout: dropout probability of the vectors in training.
        bias: whether the logits have a bias.
        transform: layer before the logits (absent: none).
    """

    num_classes: Size
    dropout: Probability = 0.0
    bias: Flag = True
    transform: HeadTransform | None = None


@part
class ClassificationHead(ClassHead):
    """Logits over `num_classes` from the pooled vector of a sequence or image. One class means regression.

    A decoder pools the last token, the only token that attends to the whole sequence.
    """

    classifies: ClassVar[bool] = True
    kind: Literal["classification"] = "classification"


@part
class TokenClassificationHead(ClassHead):
    """Logits over `num_classes` for each token, as in named entity recognition (Devlin 2018, section 5.3)."""

    labels_tokens: ClassVar[bool] = True
    kind: Literal["token_classification"] = "token_classification"


@part
class SpanHead(ClassHead):
    """Two logits per token, for the start and the end of an answer span (Devlin 2018, section 4.2)."""

    labels_tokens: ClassVar[bool] = True
    marks_spans: ClassVar[bool] = True
    kind: Literal["span"] = "span"
    num_classes: Literal[2] = 2


@part
class NoHead(Head):
    """No head: the model returns its final vectors."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"
