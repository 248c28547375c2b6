"""Encoders: every position sees every other."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EndsWithNorm, StackView
from archetype.parts.activation.spec import Tanh
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, MaskedLanguageModelHead, TokenClassificationHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.sentence_head.spec import SentenceEmbeddingHead
from archetype.roles.activation import AnyActivation
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import EncoderHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.base import Flag, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, Width

__all__ = ["Encoder"]


@part
class Encoder(EndsWithNorm, ModelSpec):
    """A stack in which every position sees every other; it understands a text that is whole (Devlin 2018).

    The first token's vector stands for a text, or with `pooling` mean that of all its tokens; late pooling is the mean
    of the logits that a head for classes gives each token (EuroBERT). `pooler` adds a layer with tanh on the pooled
    vector; ELECTRA has another `pooler_activation`.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        residual: how what the contents of its layers give is carried on.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        pooling: what stands for a text: first, the vector of its first token; mean, that of all; or late, the mean of
            the logits of all.
        pooler: a layer on the pooled vector.
        pooler_activation: that layer's nonlinearity.
        head: what is answered for the vectors.
        initialization: how weights are drawn.
    """

    embeds_tokens: ClassVar[bool] = True
    can_classify: ClassVar[bool] = True
    shares_positions: ClassVar[bool] = True
    kind: Literal["encoder"] = "encoder"
    vocab_size: Vocabulary
    context_length: Context
    d_model: Width
    embedding: AnyTokenEmbedding = Embedding()
    layers: Layers
    residual: AnyResidual = ResidualSum()
    final_norm: AnyNorm = NoNorm()
    pooling: Literal["first", "mean", "late"] = "first"
    pooler: Flag = False
    pooler_activation: AnyActivation = Tanh()
    head: EncoderHead = MaskedLanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (
            StackView(
                "", self.layers, self.final_norm, self.d_model, causal=False, residual=self.residual,
                vocab_size=self.vocab_size, layer_features=self.embedding.layer_features,
            ),
        )  # fmt: skip

    @property
    def fills_masks(self) -> bool:
        """With a head over the vocabulary."""
        return self.head.predicts_masked

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """A head behind a pooler of the first token's vector, or of each token's vector."""
        kind = TokenClassificationHead if of_tokens else ClassificationHead
        head = kind(num_classes=num_classes, dropout=getattr(self.embedding, "dropout", 0.0))
        return self.replace(head=head, pooling="first", pooler=not of_tokens)

    def with_sentence_head(self) -> Self:
        """A head that gives the vector of each text: of all tokens, as most published ones have it."""
        return self.replace(head=SentenceEmbeddingHead(pooling=("mean",)), pooling="first")

    @model_validator(mode="after")
    def _late_pooling_is_of_logits(self) -> Self:
        if self.pooling == "late" and (self.pooler or not self.head.classifies):
            invalid("pooling", "late pooling is of the logits of classes, without a pooler", "use first or mean")
        return self
