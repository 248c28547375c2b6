"""Vectors to answers."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec


class LanguageModelHead(nn.Module):
    """Logits over the vocabulary. A tied head has no table of its own and multiplies by the embedding's."""

    def __init__(self, head: spec.LanguageModelHead, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.empty(vocab_size)) if head.bias else None

    def forward(self, x: Float[Tensor, "B T D"], embedding: Float[Tensor, "V D"]) -> Float[Tensor, "B T V"]:
        return nn.functional.linear(x, embedding if self.weight is None else self.weight, self.bias)
