"""Sentence head: token vectors to one vector per text."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import Lengths, Vectors, mean_over_tokens
from archetype.nn.registry import module_for
from archetype.parts.activation.module import activation
from archetype.parts.sentence_head import spec
from archetype.weights.linear import WithMatrix


def pool(mode: spec.PoolingMode, vectors: Vectors, num_tokens: Lengths) -> Float[Tensor, "B D"]:
    """Pool the token vectors of each text into one, leaving out padding at the end."""
    positions = torch.arange(vectors.shape[1], device=vectors.device)
    is_token = (positions < num_tokens[:, None])[..., None]  # (B, T, 1)
    weights = is_token * (positions[:, None] + 1)  # (B, T, 1): n for the n-th token
    pools: dict[spec.PoolingMode, Callable[[], Tensor]] = {
        "first": lambda: vectors[:, 0],
        "max": lambda: vectors.masked_fill(~is_token, -torch.inf).amax(1),
        "mean": lambda: mean_over_tokens(vectors, num_tokens),
        "mean_sqrt_len": lambda: (vectors * is_token).sum(1) / num_tokens[:, None].sqrt(),
        "weighted_mean": lambda: (vectors * weights).sum(1) / weights.sum(1),
        "last": lambda: vectors[torch.arange(vectors.shape[0], device=vectors.device), num_tokens - 1],
    }
    return pools[mode]()


class Dense(WithMatrix):
    """f(W x + b), applied to the vector of a text."""

    def __init__(self, layer: spec.DenseLayer, features: int) -> None:
        super().__init__(features, layer.width, bias=layer.bias)
        self.activation = activation(layer.activation)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D_s"]:
        return self.activation(self.product(x))


@module_for(spec.SentenceEmbeddingHead)
class SentenceEmbeddingHead(nn.Module):
    """Pooling, layers and normalization (Reimers 2019)."""

    def __init__(self, head: spec.SentenceEmbeddingHead, vocab_size: int, features: int) -> None:
        super().__init__()
        self.spec = head
        self.layers = nn.ModuleList()
        width = features * len(head.pooling)
        for layer in head.layers:
            self.layers.append(Dense(layer, width))
            width = layer.width

    def forward(
        self, hidden: Vectors, num_tokens: Lengths | None = None, normalized: bool | None = None
    ) -> Float[Tensor, "B D_s"]:
        """Return the vector of each text.

        Args:
            hidden: token vectors, padded at the end.
            num_tokens: number of tokens of each text (default: no padding).
            normalized: whether vectors are scaled to length 1 (default: from the specification).
        """
        if num_tokens is None:
            num_tokens = torch.full((hidden.shape[0],), hidden.shape[1], device=hidden.device)
        x = torch.cat([pool(mode, hidden, num_tokens) for mode in self.spec.pooling], dim=-1)  # (B, poolings D)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.normalize(x, dim=-1) if (self.spec.normalize if normalized is None else normalized) else x
