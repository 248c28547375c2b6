"""Specification of decoders."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.further_tokens.spec import FurtherTokens
from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import CausalSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EarlyExit, EndsWithNorm, StackView
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, LanguageModelHead, TokenClassificationHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.sentence_head.spec import SentenceEmbeddingHead
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import DecoderHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, Width


@part
class Decoder(EndsWithNorm, CausalSpec):
    """Causal stack that predicts the next token, classifies the sequence or its tokens, or returns its vectors.

    Attributes:
        vocab_size: vocabulary size, V.
        context_length: maximum sequence length in tokens.
        d_model: width of the hidden vectors, D.
        embedding: token embedding.
        layers: list of blocks; {repeat: n, block: ...} repeats a block n times.
        residual: residual wiring of the layers.
        final_norm: norm after the last layer; write {kind: none} for a pre-norm stack without a final norm.
        early_exit: exit of tokens from the passes of a loop by a learned gate (absent: none).
        head: head that reads the final vectors.
        further_tokens: multi-token prediction (absent: none).
        initialization: initialization of the weights.
    """

    embeds_tokens: ClassVar[bool] = True
    can_classify: ClassVar[bool] = True
    shares_positions: ClassVar[bool] = True
    kind: Literal["decoder"] = "decoder"
    vocab_size: Vocabulary
    context_length: Context
    d_model: Width
    embedding: AnyTokenEmbedding = Embedding()
    layers: Layers
    residual: AnyResidual = ResidualSum()
    final_norm: AnyNorm = NoNorm()
    early_exit: EarlyExit | None = None
    head: DecoderHead = LanguageModelHead()
    further_tokens: FurtherTokens | None = None
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        stack = StackView.of(self, self.vocab_size, self.embedding.layer_features)
        return (stack._replace(early_exit=self.early_exit),)

    @property
    def further_stack(self) -> StackView | None:
        return None if self.further_tokens is None else self.further_tokens.stack(self.layers, self.d_model)

    @model_validator(mode="after")
    def _further_tokens_fit(self) -> Self:
        if self.further_tokens is not None and (stack := self.further_stack) is not None:
            if not self.head.predicts_next:
                invalid("further_tokens", "the head does not predict tokens", "remove it, or use kind language_model")
            self.further_tokens.check(stack)
        return self

    @property
    def divides_into_stages(self) -> bool:
        # stages must not share a table, and layers may depend only on the layer before them
        has_own_table = self.head.predicts_next and self.head.is_product and not self.head.shares_table
        return has_own_table and self.stacks[0].divides

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """Return the model with a classification head, on the last token or each token, instead of token prediction."""
        kind = TokenClassificationHead if of_tokens else ClassificationHead
        head = kind(num_classes=num_classes, dropout=getattr(self.embedding, "dropout", 0.0), bias=of_tokens)
        return self.replace(head=head, further_tokens=None)

    def with_sentence_head(self) -> Self:
        # the last token is the only one that sees the whole text
        return self.replace(head=SentenceEmbeddingHead(pooling=("last",)), further_tokens=None)
