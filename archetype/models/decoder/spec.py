"""Decoders: no position sees a later one."""

from typing import ClassVar, Literal, Self

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import CausalSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EndsWithNorm, StackView
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, LanguageModelHead
from archetype.parts.norm.spec import NoNorm
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import DecoderHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.base import Length, Size, WideSize
from archetype.spec.kinds import part

__all__ = ["Decoder"]


@part
class Decoder(EndsWithNorm, CausalSpec):
    """A stack in which no position sees a later one; it predicts the next token, or a class of the text.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        residual: how what the contents of its layers give is carried on.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        head: how vectors become logits.
        initialization: how weights are drawn.
    """

    embeds_tokens: ClassVar[bool] = True
    can_classify: ClassVar[bool] = True
    shares_positions: ClassVar[bool] = True
    kind: Literal["decoder"] = "decoder"
    vocab_size: WideSize
    context_length: Length
    d_model: Size
    embedding: AnyTokenEmbedding = Embedding()
    layers: Layers
    residual: AnyResidual = ResidualSum()
    final_norm: AnyNorm = NoNorm()
    head: DecoderHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (StackView("", self.layers, self.final_norm, self.d_model, causal=True, residual=self.residual),)

    @property
    def divides_into_stages(self) -> bool:
        """Where the head is a product with a table of its own, and no layer needs more than the one before it gives."""
        has_own_table = self.head.predicts_next and self.head.is_product and not self.head.shares_table
        return has_own_table and self.stacks[0].divides

    def with_class_head(self, num_classes: int) -> Self:
        """A head of the last token's vector."""
        head = ClassificationHead(num_classes=num_classes, dropout=getattr(self.embedding, "dropout", 0.0), bias=False)
        return self.replace(head=head)
