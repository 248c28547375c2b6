"""The encoder: bidirectional attention over whole sequences."""

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
    """A bidirectional stack of blocks over whole sequences (Devlin 2018)."""

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
        """Return the vector of each sequence: its first token's vector or the mean, after the pooler, if any."""
        # (B, D)
        vector = hidden[:, 0] if self.spec.pooling == "first" else mean_over_tokens(hidden, num_tokens)
        return vector if self.pooler is None else self.pooler(vector)

    def class_logits(self, hidden: Vectors, context: ForwardContext, classifier: Classifier) -> Tensor:
        """Return class logits: (B, Y) for each sequence, or (B, T, Y) for each token."""
        if self.spec.head.labels_tokens:
            return classifier(hidden)
        if self.spec.pooling == "late":
            return mean_over_tokens(classifier(hidden), context.num_tokens)  # (B, T, Y) to (B, Y)
        return classifier(self.pooled(hidden, context.num_tokens))

    def forward(
        self,
        tokens: Tokens,
        num_tokens: Lengths | None = None,
        token_types: Tokens | None = None,
        with_logits: bool = True,
        shares: PositionShares | None = None,
    ) -> Output:
        """Return the hidden vectors, (B, T, D), and the output of the head.

        The head returns logits of tokens, (B, T, V), of classes, (B, Y) or (B, T, Y), or vectors of whole texts.

        Args:
            tokens: token ids (B, T), padded at the end.
            num_tokens: number of tokens in each row, padding excluded (absent: no padding).
            token_types: segment of each token (absent: the first).
            with_logits: whether to compute the head; otherwise only its input vectors.
            shares: positions of this process under context parallelism (absent: all).

        Raises:
            SpecError: a sequence is longer than the learned positions.
        """
        context = self.context(tokens, num_tokens=num_tokens).shared_by(shares)
        types = None if token_types is None else context.own(token_types)
        x = self.run(self.embedding(context.own(tokens), context, types), context)  # (B, T, D)
        x = self.final_norm(x, context)  # (B, T, D)
        logits: Tensor | None = None
        if self.lm_head is not None and with_logits:
            logits = self.lm_head(x, self.token_table)  # (B, T, V)
        elif self.classifier is not None and with_logits:
            logits = self.class_logits(x, context, self.classifier)
        # (B, D_s)
        vectors = self.sentence_head(x, num_tokens) if self.sentence_head is not None and with_logits else None
        return Output(logits, aux_loss=context.aux_loss, hidden=x, text_vectors=vectors)
