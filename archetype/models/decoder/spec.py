"""Decoders: no position sees a later one."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.further_tokens.spec import FurtherTokens
from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import CausalSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EndsWithNorm, StackView
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, LanguageModelHead, TokenClassificationHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.sentence_head.spec import SentenceEmbeddingHead
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import DecoderHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.base import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, Width

__all__ = ["Decoder"]


@part
class Decoder(EndsWithNorm, CausalSpec):
    """A stack in which no position sees a later one; it predicts the next token, or a class of the text, or
    gives the vectors themselves.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        residual: how what the contents of its layers give is carried on.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        head: how vectors become logits.
        further_tokens: predictions of the tokens after the next (absent: none).
        initialization: how weights are drawn.
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
    head: DecoderHead = LanguageModelHead()
    further_tokens: FurtherTokens | None = None
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (
            StackView(
                "", self.layers, self.final_norm, self.d_model, causal=True, residual=self.residual,
                vocab_size=self.vocab_size, layer_features=self.embedding.layer_features,
            ),
        )  # fmt: skip

    @property
    def further_stack(self) -> StackView | None:
        """The blocks that predict further tokens."""
        return None if self.further_tokens is None else self.further_tokens.stack(self.layers, self.d_model)

    @model_validator(mode="after")
    def _further_tokens_fit(self) -> Self:
        if self.further_tokens is not None and (stack := self.further_stack) is not None:
            if not self.head.predicts_next:
                invalid("further_tokens", "the head predicts no tokens", "leave it out, or use kind language_model")
            self.further_tokens.check(stack)
        return self

    @property
    def divides_into_stages(self) -> bool:
        """Where the head is a product with a table of its own, and no layer needs more than the one before it gives."""
        has_own_table = self.head.predicts_next and self.head.is_product and not self.head.shares_table
        return has_own_table and self.stacks[0].divides

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """A head of the last token's vector, or of each token's, and no prediction of tokens."""
        kind = TokenClassificationHead if of_tokens else ClassificationHead
        head = kind(num_classes=num_classes, dropout=getattr(self.embedding, "dropout", 0.0), bias=of_tokens)
        return self.replace(head=head, further_tokens=None)

    def with_sentence_head(self) -> Self:
        """A head that gives the vector of each text: of the last token, which alone has seen the whole text."""
        return self.replace(head=SentenceEmbeddingHead(pooling=("last",)), further_tokens=None)
