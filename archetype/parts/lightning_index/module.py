"""Lightning index: scores by a small attention, and the best keys of each query."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from archetype.nn.cache import KeepsKeys, LayerState, write_slots
from archetype.nn.context import ForwardContext, Vectors
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
    scores: Tensor = (weights * of_heads).sum(1)
    return scores


@module_for(spec.LightningIndex)
class LightningIndex(KeepsKeys, KeySelector):
    """Select the keys with the largest sum_j w_tj ReLU(q_tj k_s) / sqrt(H P) (DeepSeek-AI 2025)."""

    keeps_int8 = False

    def __init__(self, index: spec.LightningIndex, place: Place, query_features: int) -> None:
        super().__init__()
        self.spec = index
        if index.from_layer is not None:  # nothing is computed here
            return
        self.q = Linear(query_features, index.num_heads * index.head_dim, bias=False)
        self.k = Linear(place.d_model, index.head_dim, bias=False)
        self.k_norm = None if index.norm.is_absent else build_norm(index.norm, index.head_dim)
        self.weights = Linear(place.d_model, index.num_heads, bias=False)
        self.rotary = None if index.position is None else Rotary(index.position, index.sizes)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> IndexKeys | None:
        if self.spec.from_layer is not None:
            return None
        return IndexKeys.empty(batch, capacity, self.spec.head_dim, self.cache_dtype or dtype, device)

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
        keys = self._keys(x, context)
        if state is not None:
            assert isinstance(state, IndexKeys)
            write_slots(state.keys, keys, context)
            keys = state.keys.to(x.dtype)  # (B, 1, S, P), every slot
        learns = self.training and self.spec.adds_to_loss
        leaves_out = is_symbolic(keys.shape[2]) or keys.shape[2] > self.spec.top_k
        if not (learns or leaves_out):  # the scores would change nothing
            context.leave(EVERY_KEY)
            return EVERY_KEY
        # (B, T, S)
        scores = self._scores(x, queries, keys, context).masked_fill(~allowed[:, 0], MASKED)
        chosen = None
        if leaves_out:
            chosen = context.probe(self, "chosen", allowed & best_keys(scores.detach(), self.spec.top_k)[:, None])
            scores = scores.masked_fill(~chosen[:, 0], MASKED)
        context.leave(Choice(chosen, self.spec.top_k))  # without scores, for only this layer trains its index
        return Choice(chosen, self.spec.top_k, scores if learns else None)

    def loss(self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext) -> Float[Tensor, ""]:
        """Return KL(attended || softmax of scores), averaged over queries that are not padding, times its weight."""
        assert choice.scores is not None
        return self.spec.loss_weight * mean_divergence(choice.scores.log_softmax(-1), attended, context)

    def _keys(self, x: Vectors, context: ForwardContext) -> Float[Tensor, "B 1 T P"]:
        keys = self.k(x) if self.k_norm is None else self.k_norm(self.k(x))  # (B, T, P)
        return self._rotated(keys[:, None], context)

    def _scores(
        self, x: Vectors, queries: Float[Tensor, "B T r"], keys: Float[Tensor, "B 1 S P"], context: ForwardContext
    ) -> Float[Tensor, "B T S"]:
        heads, size = self.spec.num_heads, self.spec.head_dim
        q = self._rotated(self.q(queries).unflatten(-1, (heads, size)).transpose(1, 2), context)  # (B, H, T, P)
        return relevances(q, keys, self.weights(x))

    def _rotated(self, x: Float[Tensor, "B H T P"], context: ForwardContext) -> Float[Tensor, "B H T P"]:
        if self.rotary is None:
            return x
        # products of queries and keys do not depend on the order of features
        x = x.roll(self.spec.sizes.rotary_dim, -1) if self.spec.rotates == "last" else x
        rotated: Tensor = self.rotary(x, context.positions, context)
        return rotated
