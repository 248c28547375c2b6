"""The encoder: every position attends to every other."""

from jaxtyping import Float
from torch import Tensor

from archetype.models.encoder import spec
from archetype.models.output import Classifier, Output, TokenModel
from archetype.models.stack.module import Stack
from archetype.nn.context import ForwardContext, Lengths, Tokens, Vectors, mean_over_tokens
from archetype.nn.registry import build_embedding, module_for
from archetype.nn.shared_rows import PositionShares
from archetype.parts.head.module import Pooler


@module_for(spec.Encoder)
class Encoder(Stack, TokenModel):
    """A stack of blocks over a whole text (Devlin 2018)."""

    def __init__(self, encoder: spec.Encoder) -> None:
        (stack,) = encoder.stacks
        super().__init__(stack)
        self.spec = encoder
        self.embedding = build_embedding(
            encoder.embedding, encoder.vocab_size, encoder.context_length, encoder.d_model, stack.readers
        )
        self.pooler = Pooler(encoder.d_model, encoder.pooler_activation) if encoder.pooler else None
        self.add_head(encoder.head, encoder.vocab_size, encoder.d_model)

    def pooled(self, hidden: Vectors, num_tokens: Lengths | None = None) -> Float[Tensor, "B D"]:
        """The vector of each text: its first token's or the mean of all, through the pooler where there is one."""
        one = hidden[:, 0] if self.spec.pooling == "first" else mean_over_tokens(hidden, num_tokens)
        return one if self.pooler is None else self.pooler(one)

    def class_logits(self, hidden: Vectors, context: ForwardContext, classifier: Classifier) -> Tensor:
        """Logits of classes: (B, Y) of each text, or (B, T, Y) of each token."""
        if self.spec.head.labels_tokens:
            return classifier(hidden)
        if self.spec.pooling == "late":
            return mean_over_tokens(classifier(hidden), context.num_tokens)
        return classifier(self.pooled(hidden, context.num_tokens))

    def forward(
        self,
        tokens: Tokens,
        num_tokens: Lengths | None = None,
        token_types: Tokens | None = None,
        with_logits: bool = True,
        shares: PositionShares | None = None,
    ) -> Output:
        """The hidden vectors of all tokens, and the head's logits: (B, T, V) of tokens, (B, Y) of
        classes, or (B, T, Y) of classes of tokens; or the vectors of texts.

        Args:
            tokens: of each row, padded at the end where rows differ.
            num_tokens: how many of each row's tokens are not padding (absent: all).
            token_types: which part of the input each token belongs to (absent: all to the first).
            with_logits: whether the head is computed, and not only the vectors that it reads.
            shares: of processes, of which this one computes its positions (absent: it computes all).

        Raises:
            SpecError: the text is longer than the positions that were learned.
        """
        context = ForwardContext.of(tokens, num_tokens=num_tokens).shared_by(shares)
        types = None if token_types is None else context.own(token_types)
        x = self.run(self.embedding(context.own(tokens), context, types), context)
        x = self.final_norm(x, context)  # (B, T, D)
        logits: Tensor | None = None
        if self.lm_head is not None and with_logits:
            logits = self.lm_head(x, self.token_table)
        elif self.classifier is not None and with_logits:
            logits = self.class_logits(x, context, self.classifier)
        vectors = self.sentence_head(x, num_tokens) if self.sentence_head is not None and with_logits else None
        return Output(logits, aux_loss=context.aux_loss, hidden=x, text_vectors=vectors)
