"""Heads: vectors to logits."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import Vectors
from archetype.nn.dropout import dropout
from archetype.nn.registry import build_norm, module_for
from archetype.parts.activation.module import activation
from archetype.parts.activation.spec import Tanh
from archetype.parts.gain.module import build_gain
from archetype.parts.head import spec
from archetype.roles.activation import Activation
from archetype.weights.linear import Linear, WithMatrix, project
from archetype.weights.packed import Weight


@module_for(spec.LanguageModelHead)
class LanguageModelHead(nn.Module):
    """Logits over the vocabulary. A tied head multiplies by the embedding's table."""

    packed_parameters: ClassVar = ("weight",)
    shifted = False  # whether the logits of a position come from the vector before it

    def __init__(self, head: spec.LanguageModelHead, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.spec, self.vocab_size = head, vocab_size
        self.dense = self.norm = None
        width = head.table_width or d_model
        if head.transform is not None:
            self.dense = Linear(d_model, width, bias=head.transform.bias)
            self.activation = activation(head.transform.activation)
            self.norm = build_norm(head.transform.norm, width)
        # a tied head gets the embedding's table at each call
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.empty(vocab_size)) if head.bias else None
        self.gain = build_gain(head.gain, vocab_size)

    def features(self, x: Vectors) -> Float[Tensor, "B T D_e"]:
        if self.dense is not None and self.norm is not None:
            x = self.norm(self.activation(self.dense(x)))  # (B, T, D_e)
        return x if self.spec.scale == 1.0 else x * self.spec.scale

    def matrix(self, embedding: Weight) -> Weight:
        """Return the output matrix, (V, D): the head's own weight, or the embedding's table."""
        return embedding if self.weight is None else self.weight

    def forward(self, x: Vectors, embedding: Weight) -> Float[Tensor, "B T V"]:
        features, matrix = self.features(x), self.matrix(embedding)
        logits = project(features, matrix, self.bias if self.gain is None else None)  # (B, T, V)
        if self.gain is not None:
            logits = self.gain(logits) if self.bias is None else self.gain(logits) + self.bias
        cap = self.spec.softcap
        # Gemma 2: logits stay within (-cap, cap)
        return logits if cap is None else cap * torch.tanh(logits / cap)


@module_for(spec.MaskedLanguageModelHead, spec.MaskedLogitsHead)
class MaskedLanguageModelHead(LanguageModelHead):
    """Logits of masked tokens: f(dense(x)), a norm, and a projection to the vocabulary (Devlin 2018)."""

    def __init__(
        self, head: spec.MaskedLanguageModelHead | spec.MaskedLogitsHead, vocab_size: int, d_model: int
    ) -> None:
        super().__init__(head.as_language_model_head, vocab_size, d_model)
        self.shifted = head.is_shifted

    def features(self, x: Vectors) -> Float[Tensor, "B T D_e"]:
        return super().features(torch.cat((x[:, :1], x[:, :-1]), dim=1) if self.shifted else x)


@module_for(spec.ClassificationHead, spec.TokenClassificationHead, spec.SpanHead)
class Classifier(WithMatrix):
    """Logits of classes, from a pooled vector or from each token's vector."""

    def __init__(self, head: spec.ClassHead, vocab_size: int, features: int) -> None:
        transform = head.transform
        width = features if transform is None else transform.width or features
        super().__init__(width, head.num_classes, bias=head.bias)
        self.dropout = head.dropout
        self.dense = self.norm = None
        if transform is not None:
            self.dense = Linear(features, width, bias=transform.bias)
            self.activation = activation(transform.activation)
            self.norm = build_norm(transform.norm, width)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... Y"]:
        if self.dense is not None and self.norm is not None:
            x = self.norm(self.activation(self.dense(x)))  # (..., D) -> (..., width)
        return self.product(dropout(x, self.dropout, self.training))


class Pooler(WithMatrix):
    """tanh(W x + b) of the vector that represents the sequence (Devlin 2018), or with another activation (ELECTRA)."""

    def __init__(self, d_model: int, nonlinearity: Activation = Tanh()) -> None:
        super().__init__(d_model, d_model)
        self.activation = activation(nonlinearity)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        return self.activation(self.product(x))
