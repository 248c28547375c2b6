"""The encoder: every position sees every other."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype import spec
from archetype.models.embedding import Embedding, check_positions_fit
from archetype.models.heads import Classifier, MaskedLanguageModelHead, Pooler
from archetype.models.stack import Stack
from archetype.nn.context import ForwardContext


class Encoder(Stack):
    """A stack of blocks that understands a whole text (Devlin 2018)."""

    def __init__(self, encoder: spec.Encoder) -> None:
        super().__init__(encoder.stacks[0])
        self.spec = encoder
        self.embedding = Embedding(encoder.embedding, encoder.vocab_size, encoder.context_length, encoder.d_model)
        self.pooler = Pooler(encoder.d_model) if encoder.pooler else None
        self.lm_head: MaskedLanguageModelHead | None = None
        self.classifier: Classifier | None = None
        match encoder.head:
            case spec.MaskedLanguageModelHead() as head:
                self.lm_head = MaskedLanguageModelHead(head, encoder.vocab_size, encoder.d_model)
            case spec.ClassificationHead() as head:
                self.classifier = Classifier(head, encoder.d_model)
            case spec.NoHead():
                pass

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.token.weight.device

    def vectors(
        self,
        tokens: Int[Tensor, "B T"],
        num_tokens: Int[Tensor, "B"] | None = None,
        types: Int[Tensor, "B T"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The vector of each token in its text.

        Args:
            tokens: of each row, padded at the end where rows differ.
            num_tokens: how many of each row's tokens are no padding (absent: all).
            types: which part of the input each token belongs to (absent: all to the first).
            losses: is given what parts add to the loss that is trained on.
        """
        check_positions_fit(self.spec, tokens.shape[1])
        context = ForwardContext.of(tokens, num_tokens=num_tokens)
        x, _ = self.run(self.embedding(tokens, context, types), context)
        if losses is not None:
            losses += context.losses
        y: Tensor = self.final_norm(x, context.valid)
        return y

    def pooled(self, vectors: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """The vector that stands for each text: its first token's, through the pooler where there is one."""
        first = vectors[:, 0]
        return first if self.pooler is None else self.pooler(first)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        num_tokens: Int[Tensor, "B"] | None = None,
        types: Int[Tensor, "B T"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> Tensor:
        """What the head gives: (B, T, V) logits of tokens, (B, classes), or without a head the vectors, (B, T, D)."""
        x = self.vectors(tokens, num_tokens, types, losses)
        if self.lm_head is not None:
            x = self.lm_head(x, self.embedding.token.weight)
        elif self.classifier is not None:
            x = self.classifier(self.pooled(x))
        return x
