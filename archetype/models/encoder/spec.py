"""Specification of encoders."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.errors import SpecError
from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EndsWithNorm, StackView
from archetype.parts.activation.spec import Tanh
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, MaskedLanguageModelHead, TokenClassificationHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.sentence_head.spec import SentenceEmbeddingHead
from archetype.roles.activation import FixedActivation
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import EncoderHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.base import Flag
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, Width


@part
class Encoder(EndsWithNorm, ModelSpec):
    """Bidirectional stack over whole sequences (Devlin 2018).

    `pooling` selects the vector of a sequence: the first token's vector, or the mean; late pooling averages the logits
    of a classification head over all tokens (EuroBERT). `pooler` applies a linear layer and tanh to the pooled vector;
    ELECTRA uses a different `pooler_activation`.

    Attributes:
        vocab_size: vocabulary size, V.
        context_length: maximum sequence length in tokens.
        d_model: width of the hidden vectors, D.
        embedding: token embedding.
        layers: list of blocks; {repeat: n, block: ...} repeats a block n times.
        residual: residual wiring of the layers.
        final_norm: norm after the last layer; write {kind: none} for a pre-norm stack without a final norm.
        pooling: pooling of a sequence: first (the first token's vector), mean, or late (mean of the logits of all
            tokens).
        pooler: whether the pooled vector passes through a linear layer.
        pooler_activation: activation of the pooler.
        head: head that reads the vectors.
        initialization: initialization of the weights.
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
    pooler_activation: FixedActivation = Tanh()
    head: EncoderHead = MaskedLanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        return (StackView.of(self, self.vocab_size, self.embedding.layer_features),)

    @property
    def block_length(self) -> int | None:
        """Positions of the blocks that the model generates one after the other; None if all positions see each other.

        Raises:
            SpecError: layers have blocks of different lengths.
        """
        lengths = {
            layer.mixer.block_length if layer.feedforward.separates_documents else None: index
            for index, layer in enumerate(self.layers)
        }
        if len(lengths) > 1:
            cause = f"has other block sizes than layer {min(lengths.values())}, so no block can be generated at once"
            raise SpecError(f"layers[{max(lengths.values())}].mixer", cause, "use one pattern in each layer")
        return next(iter(lengths), None)

    @property
    def fills_masks(self) -> bool:
        return self.head.predicts_masked

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """Return the model with a classification head, on the pooled first token or on each token."""
        kind = TokenClassificationHead if of_tokens else ClassificationHead
        head = kind(num_classes=num_classes, dropout=getattr(self.embedding, "dropout", 0.0))
        return self.replace(head=head, pooling="first", pooler=not of_tokens)

    def with_sentence_head(self) -> Self:
        # the mean of all tokens is the most common pooling
        return self.replace(head=SentenceEmbeddingHead(pooling=("mean",)), pooling="first")

    @model_validator(mode="after")
    def _late_pooling_is_of_logits(self) -> Self:
        if self.pooling == "late" and (self.pooler or not self.head.classifies):
            invalid("pooling", "late pooling averages class logits and needs no pooler", "use first or mean")
        return self
