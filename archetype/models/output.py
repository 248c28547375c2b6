"""The base of all models, which knows where their weights are, and the output of a forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import State
from archetype.nn.context import Vectors
from archetype.nn.registry import build_head
from archetype.roles.head import Head
from archetype.weights.packed import PackedMatrix, Weight

Classifier = Callable[[Tensor], Tensor]  # of vectors, (..., D), the logits of their classes, (..., Y)


@dataclass
class Output:
    """The result of a forward pass.

    Attributes:
        logits: of tokens (B, t, V), of classes (B, Y), or of classes of tokens (B, T, Y); None for a model without such
            a head, and where they were left out.
        state: what the next tokens go on from, where the pass was given a state.
        aux_loss: what parts add to the training loss, such as a balance of experts; None where none does.
        hidden: the vectors that the head reads, (B, t, D).
        further: likewise for each token after the next, (B, T, D) each; empty but while training a model that predicts
            further tokens.
        text_vectors: of whole texts, (B, D_s); None for a model whose head gives none, and where they were left out.
    """

    logits: Tensor | None
    state: State | None = None
    aux_loss: Float[Tensor, ""] | None = None
    hidden: Vectors | None = None
    further: tuple[Vectors, ...] = ()
    text_vectors: Float[Tensor, "B D_s"] | None = None


class BaseModel(nn.Module):
    """Base of all models.

    `lm_head` of those that predict tokens gives their logits, `classifier` those of classes, `sentence_head` vectors of
    texts.
    """

    lm_head: Any  # a module, or None
    classifier: Any
    sentence_head: Any

    def add_head(self, head: Head, vocab_size: int, features: int) -> None:
        """Build the head under the name that says what it answers.

        Args:
            head: the specification.
            vocab_size: tokens of the vocabulary.
            features: of the vectors that it reads.
        """
        module = build_head(head, vocab_size, features)
        self.classifier = module if head.has_classes else None
        self.sentence_head = module if head.embeds else None
        self.lm_head = None if head.has_classes or head.embeds else module

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(tensor for tensors in (self.parameters(), self.buffers()) for tensor in tensors).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights; of the vectors, where all weights are packed."""
        for parameter in self.parameters():
            return parameter.dtype
        return next(module.dtype for module in self.modules() if isinstance(module, PackedMatrix))


class TokenModel(BaseModel):
    """Base of models that read tokens.

    Attributes:
        is_deterministic: whether the logits after a token have the same bits alone and in company, while texts are
            continued: `generate.make_deterministic` says so.
    """

    embedding: Any  # a module, whose `token` is a table
    is_deterministic = False

    @property
    def token_table(self) -> Weight:
        """The table of the embedding, (V, D), which a tied head multiplies by."""
        table: Weight = self.embedding.token.weight
        return table
