"""Lightning index: scores by a small attention, and the best keys of each query."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.nn.cache import KeepsKeys, write_slots
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.selection import EVERY_KEY, Choice, IndexKeys, KeySelector, best_keys, mean_divergence
from archetype.nn.symbolic import is_symbolic
from archetype.parts.lightning_index import spec
from archetype.parts.pattern.scores import MASKED, at_least_float32
from archetype.parts.position.module import Rotary
from archetype.weights.linear import Linear


def relevances(
    q: Float[Tensor, "B H T P"], keys: Float[Tensor, "B 1 S P"], weights: Float[Tensor, "B T H"]
) -> Float[Tensor, "B T S"]:
    """Return sum_j w_tj ReLU(q_tj k_s) / sqrt(H P) for each query t and key s."""
    _, heads, _, size = q.shape
    # in float32, as the published kernels accumulate: rounded products would select other keys
    products = at_least_float32(q.flatten(1, 2)) @ at_least_float32(keys[:, 0]).mT  # (B, HT, S)
    of_heads = at_least_float32(products).relu().unflatten(1, (heads, -1))  # (B, H, T, S)
    weights = at_least_float32(weights).mT[..., None] / math.sqrt(heads * size)  # (B, H, T, 1)
    return (weights * of_heads).sum(1)


class LearnedIndex(KeepsKeys, KeySelector):
    """Base class of indexes with separate queries and keys; their keys are the state.

    Args:
        query_features: width of the vectors from which queries are projected.
    """

    keeps_int8 = False

    def __init__(self, index: Any, place: Place, query_features: int) -> None:
        super().__init__()
        self.spec = index
        self.rotary = None if index.position is None else Rotary(index.position, index.sizes)
        if index.key_features:
            self.q = Linear(query_features, index.num_heads * index.head_dim, bias=False)
            self.k = Linear(place.d_model, index.head_dim, bias=False)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> IndexKeys | None:
        """Return an empty cache of all keys."""
        if not self.spec.key_features:
            return None
        return IndexKeys.empty(batch, capacity, self.spec.key_features, self.cache_dtype or dtype, device)

    @property
    def learns(self) -> bool:
        return self.training and bool(self.spec.adds_to_loss)

    def leaves_out(self, keys: Float[Tensor, "B K S G"]) -> bool:
        count = keys.shape[2]
        return is_symbolic(count) or not self.spec.sees_all(count)

    def heads(self, projected: Float[Tensor, "B T HP"], norm: nn.Module | None = None) -> Float[Tensor, "B H T P"]:
        """Return the normalized features of each head."""
        split = projected.unflatten(-1, (-1, self.spec.head_dim))  # (B, T, H, P)
        return (split if norm is None else norm(split)).transpose(1, 2)

    def rotated(self, x: Float[Tensor, "B H T P"], context: ForwardContext) -> Float[Tensor, "B H T P"]:
        return x if self.rotary is None else self.rotary(x, context.positions, context)

    def with_earlier(
        self, keys: Float[Tensor, "B 1 T G"], x: Vectors, context: ForwardContext, state: LayerState | None
    ) -> Float[Tensor, "B 1 S G"]:
        """Write the new keys to the cache, and return the keys of all slots in the data type of `x`."""
        if state is None:
            return keys
        assert isinstance(state, IndexKeys)
        write_slots(state.keys, keys, context)
        return state.keys.to(x.dtype)

    def build_norm(self) -> nn.Module:
        return build_norm(self.spec.norm, self.spec.head_dim)


@module_for(spec.LightningIndex)
class LightningIndex(LearnedIndex):
    """Select the keys with the largest sum_j w_tj ReLU(q_tj k_s) / sqrt(H P) (DeepSeek-AI 2025)."""

    def __init__(self, index: spec.LightningIndex, place: Place, query_features: int) -> None:
        super().__init__(index, place, query_features)
        if index.from_layer is None:  # otherwise nothing is computed here
            self.k_norm = self.build_norm()
            self.weights = Linear(place.d_model, index.num_heads, bias=False)

    def forward(
        self,
        x: Vectors,
        queries: Float[Tensor, "B T r"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:
        if (source := self.spec.source(context.layer)) is not None:
            choice: Choice = context.left_by(source)
            if choice.keys is None:
                return choice
            return choice._replace(keys=context.probe(self, "chosen", choice.keys))
        x, queries = x.detach(), queries.detach()  # the index's loss must not train the model
        keys = self.rotated(self.heads(self.k(x), self.k_norm), context)  # (B, 1, T, P)
        keys = self.with_earlier(keys, x, context, state)  # (B, 1, S, P)
        leaves_out = self.leaves_out(keys)
        if not (self.learns or leaves_out):  # the scores would change nothing
            context.leave(EVERY_KEY)
            return EVERY_KEY
        q = self.rotated(self.heads(self.q(queries)), context)  # (B, H, T, P)
        scores = relevances(q, keys, self.weights(x)).masked_fill(~allowed[:, 0], MASKED)  # (B, T, S)
        chosen = None
        if leaves_out:
            chosen = context.probe(self, "chosen", allowed & best_keys(scores.detach(), self.spec.top_k)[:, None])
            scores = scores.masked_fill(~chosen[:, 0], MASKED)
        context.leave(Choice(chosen, self.spec.top_k))  # without scores, for only this layer trains its index
        return Choice(chosen, self.spec.top_k, scores if self.learns else None)

    def loss(self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext) -> Float[Tensor, ""]:
        """Return KL(attended || softmax of scores), averaged over queries that are not padding, times its weight."""
        assert choice.scores is not None
        return self.spec.loss_weight * mean_divergence(choice.scores.log_softmax(-1), attended, context)

    def rotated(self, x: Float[Tensor, "B H T P"], context: ForwardContext) -> Float[Tensor, "B H T P"]:
        # products of queries and keys do not depend on the order of features
        x = x.roll(self.spec.sizes.rotary_dim, -1) if self.spec.rotates == "last" else x
        return super().rotated(x, context)
