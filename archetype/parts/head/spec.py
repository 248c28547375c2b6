"""Heads: what a model computes from the vectors at its end."""

from typing import ClassVar, Literal

from archetype.parts.activation.spec import GELU
from archetype.parts.norm.spec import NoNorm
from archetype.roles.activation import AnyActivation
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
    """A layer and its norm, before the logits (BERT as a decoder; OPT 350M, without activation, bias and norm).

    Attributes:
        activation: the layer's nonlinearity.
        norm: of what it gives.
        width: features of what it gives (absent: d_model).
        bias: whether the layer adds a bias.
    """

    activation: AnyActivation = GELU()
    norm: AnyNorm = NoNorm()
    width: Width | None = None
    bias: Flag = True


@part
class LanguageModelHead(Head):
    """Logits over the vocabulary, perhaps of transformed vectors; `tied` multiplies by the embedding's own table.

    Vectors are multiplied by `scale` first (T5); `softcap` bends a logit z to c tanh(z / c) (Gemma 2).

    Attributes:
        tied: whether logits are products with the embedding's own table.
        bias: whether a bias is added to the logits.
        scale: factor of the vectors.
        softcap: c, where logits are bent to c tanh(z / c) (absent: they are not).
        transform: a layer before the logits (absent: none).
    """

    predicts_next: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["language_model"] = "language_model"
    tied: Flag = False
    bias: Flag = False
    scale: Positive = 1.0
    softcap: Positive | None = None
    transform: HeadTransform | None = None

    @property
    def table_width(self) -> int | None:
        """As wide as the layer before it."""
        return self.transform.width if self.transform else None

    @property
    def shares_table(self) -> bool:
        """Where it is tied."""
        return self.tied


@part
class MaskedLanguageModelHead(Head):
    """Logits of hidden tokens: a layer, its norm, then the vocabulary (Devlin 2018).

    Attributes:
        activation: the layer's nonlinearity.
        norm: of what it gives.
        width: features of what it gives (absent: d_model).
        tied: whether logits are products with the embedding's own table.
        bias: whether a bias is added to the logits.
        dense_bias: whether the layer adds a bias.
    """

    predicts_masked: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["masked_language_model"] = "masked_language_model"
    activation: AnyActivation = GELU()
    norm: AnyNorm = NoNorm()
    width: Width | None = None
    tied: Flag = True
    bias: Flag = True
    dense_bias: Flag = True

    @property
    def table_width(self) -> int | None:
        """As wide as the layer before it."""
        return self.width

    @property
    def shares_table(self) -> bool:
        """Where it is tied."""
        return self.tied

    @property
    def as_language_model_head(self) -> LanguageModelHead:
        """A head of the other kind that computes the same."""
        transform = HeadTransform(activation=self.activation, norm=self.norm, width=self.width, bias=self.dense_bias)
        return LanguageModelHead(tied=self.tied, bias=self.bias, transform=transform)


@part
class MaskedLogitsHead(Head):
    """Logits of hidden tokens, of the vectors themselves (EuroBERT; Boizard 2025).

    Attributes:
        tied: whether logits are products with the embedding's own table.
        bias: whether a bias is added to the logits.
    """

    predicts_masked: ClassVar[bool] = True
    is_product: ClassVar[bool] = True
    kind: Literal["masked_logits"] = "masked_logits"
    tied: Flag = False
    bias: Flag = False

    @property
    def shares_table(self) -> bool:
        """Where it is tied."""
        return self.tied

    @property
    def as_language_model_head(self) -> LanguageModelHead:
        """A head of the other kind that computes the same."""
        return LanguageModelHead(tied=self.tied, bias=self.bias)


class ClassHead(Head):
    """Base of heads that give logits of classes.

    Attributes:
        num_classes: classes, Y.
        dropout: of the vectors that are multiplied, while training.
        bias: whether a bias is added to the logits.
        transform: a layer before the logits (absent: none).
    """

    num_classes: Size
    dropout: Probability = 0.0
    bias: Flag = True
    transform: HeadTransform | None = None


@part
class ClassificationHead(ClassHead):
    """Logits of `num_classes` for a whole text or image, from its pooled vector; of one, a value that is estimated.

    A decoder's pooled vector is that of a text's last token, which alone has seen all of it.
    """

    classifies: ClassVar[bool] = True
    kind: Literal["classification"] = "classification"


@part
class TokenClassificationHead(ClassHead):
    """Logits of `num_classes` for each token, such as whether it begins a name (Devlin 2018, section 5.3)."""

    labels_tokens: ClassVar[bool] = True
    kind: Literal["token_classification"] = "token_classification"


@part
class SpanHead(ClassHead):
    """Two logits for each token: that an answer begins here, and that it ends here (Devlin 2018, section 4.2)."""

    labels_tokens: ClassVar[bool] = True
    marks_spans: ClassVar[bool] = True
    kind: Literal["span"] = "span"
    num_classes: Literal[2] = 2


@part
class NoHead(Head):
    """The vectors themselves."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"
