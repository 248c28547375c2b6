"""The encoder: bidirectional attention over whole sequences."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.models.encoder import spec
from archetype.models.output import Classifier, Output, TokenModel
from archetype.models.stack.module import Stack
from archetype.nn.context import ForwardContext, Lengths, Tokens, Vectors, mean_over_tokens
from archetype.nn.registry import build_embedding, module_for
from archetype.nn.shared_rows import PositionShares
from archetype.nn.state import State
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
        clean: Tokens | None = None,
        earlier: State | None = None,
    ) -> Output:
        """Return the hidden vectors, (B, T, D), and the output of the head.

        The head returns logits of tokens, (B, T, V), of classes, (B, Y) or (B, T, Y), or vectors of whole texts.

        Args:
            tokens: token ids (B, T), padded at the end.
            num_tokens: number of tokens in each row, padding excluded (absent: no padding).
            token_types: segment of each token (absent: the first).
            with_logits: whether to compute the head; otherwise only its input vectors.
            shares: positions of this process under context parallelism (absent: all).
            clean: `tokens` (B, T) without masks, which later blocks read (block-causal attention; absent: all blocks
                read `tokens`). The output is that of `tokens`.
            earlier: keys of the blocks before these tokens (block-causal attention). It is updated in place: a block is
                read again until it is finished, and then replaced by `output.state`.

        Raises:
            SpecError: a sequence is longer than the learned positions.
        """
        length, lengths = tokens.shape[1], None if earlier is None else earlier.lengths
        inputs = tokens if clean is None else torch.cat((tokens, clean), dim=1)  # (B, 2 T) with a clean copy
        context = self.context(inputs, lengths, num_tokens).shared_by(shares)
        context = context if clean is None else context.with_clean_copy()
        types = None if token_types is None else context.own(token_types)
        x = self.run(self.embedding(context.own(inputs), context, types), context, earlier)  # (B, T, D)
        x = self.final_norm(x, context)  # (B, T, D)
        if clean is not None:
            x = self._predicting(x[:, :length], x[:, length:])
        logits = self.head_logits(x, context) if with_logits else None
        # (B, D_s)
        vectors = self.sentence_head(x, num_tokens) if self.sentence_head is not None and with_logits else None
        after = earlier.advance(context.ends) if earlier else None
        return Output(logits, after, context.aux_loss, x, text_vectors=vectors)

    def _predicting(self, masked: Vectors, clean: Vectors) -> Vectors:
        # a shifted head predicts the first token of a block from the last vector of the finished block before it
        if not (self.spec.head.is_shifted and self.spec.block_length):
            return masked
        steps = torch.arange(1, masked.shape[1] + 1, device=masked.device)
        return torch.where((steps % self.spec.block_length == 0)[:, None], clean, masked)
