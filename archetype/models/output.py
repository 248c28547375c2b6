"""Base classes of models, and the output of a forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.native.kernels import FUSED, Kernels
from archetype.nn.context import ForwardContext, Lengths, Observer, Tokens, Vectors, last_tokens
from archetype.nn.registry import build_head
from archetype.nn.state import State
from archetype.roles.head import Head
from archetype.weights.packed import PackedMatrix, Weight

Classifier = Callable[[Tensor], Tensor]  # from vectors (..., D) to logits of classes (..., Y)


@dataclass
class Output:
    """Output of a forward pass.

    Attributes:
        logits: logits of tokens (B, t, V), classes (B, Y), or classes of tokens (B, T, Y); None without such a head, or
            if not requested.
        state: state after the new tokens, if the pass was given a state.
        aux_loss: sum of losses that parts add in training, such as load balancing of experts; None without such losses.
        hidden: input vectors of the head, (B, t, D).
        further: input vectors of the head for each further token, (B, T, D) each; only in training with multi-token
            prediction.
        text_vectors: vectors of whole texts, (B, D_s); None without a sentence embedding head, or if not requested.
    """

    logits: Tensor | None
    state: State | None = None
    aux_loss: Float[Tensor, ""] | None = None
    hidden: Vectors | None = None
    further: tuple[Vectors, ...] = ()
    text_vectors: Float[Tensor, "B D_s"] | None = None


class BaseModel(nn.Module):
    """Base class of models.

    `lm_head` computes logits of tokens, `classifier` logits of classes, `sentence_head` vectors of texts; at most one
    is set. A traced copy has an `observer`, and the copy that records a decode step has its `kernels`.
    """

    observer: Observer | None = None
    kernels: Kernels = FUSED
    lm_head: Any  # a module or None
    classifier: Any
    sentence_head: Any

    def context(
        self,
        tokens: Tensor,
        lengths: Lengths | None = None,
        num_tokens: Lengths | None = None,
        document_ids: Tokens | None = None,
    ) -> ForwardContext:
        return ForwardContext.of(tokens, lengths, num_tokens, document_ids, self.observer, self.kernels)

    def add_head(self, head: Head, vocab_size: int, features: int) -> None:
        module = build_head(head, vocab_size, features)
        self.classifier = module if head.has_classes else None
        self.sentence_head = module if head.embeds else None
        self.lm_head = None if head.has_classes or head.embeds else module

    @property
    def device(self) -> torch.device:
        return next(tensor for tensors in (self.parameters(), self.buffers()) for tensor in tensors).device

    @property
    def dtype(self) -> torch.dtype:
        for parameter in self.parameters():
            return parameter.dtype
        # all weights are packed: the type of the vectors
        return next(module.dtype for module in self.modules() if isinstance(module, PackedMatrix))


class TokenModel(BaseModel):
    """Base class of models that read tokens.

    Attributes:
        is_deterministic: whether logits in generation do not depend on the other sequences of the batch, to the bit;
            set by `generate.make_deterministic`.
    """

    spec: Any
    embedding: Any  # a module whose `token` is a table
    is_deterministic = False

    @property
    def token_table(self) -> Weight:
        """Embedding table, (V, D), which is also the output matrix of a tied head."""
        return self.embedding.token.weight

    def head_logits(self, x: Vectors, context: ForwardContext) -> Tensor | None:
        """Return logits of tokens, (B, t, V), or of classes; None if the head has neither."""
        if self.lm_head is not None:
            return self.lm_head(x, self.token_table)
        return None if self.classifier is None else self.class_logits(x, context, self.classifier)

    def class_logits(self, hidden: Vectors, context: ForwardContext, classifier: Classifier) -> Tensor:
        """Return class logits: (B, Y) from each sequence's last token, or (B, t, Y) for each token."""
        if self.spec.head.labels_tokens:
            return classifier(hidden)
        last = hidden if hidden.shape[1] == 1 else last_tokens(hidden, context)  # (B, 1, D)
        return classifier(last[:, 0])
