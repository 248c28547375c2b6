"""Pool index: pooled keys, their scores, and the best pools of each query."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.selection import EVERY_KEY, Choice, best_keys, mean_divergence
from archetype.nn.symbolic import is_symbolic
from archetype.parts.lightning_index.module import LearnedIndex
from archetype.parts.pattern.scores import MASKED, at_least_float32
from archetype.parts.pool_index import spec
from archetype.weights.linear import Linear


@module_for(spec.PoolIndex)
class PoolIndex(LearnedIndex):
    """Select the pools with the largest sum_h relu(q_h k), and the keys that are in no complete pool.

    All keys are cached, and pooled when read.
    """

    def __init__(self, index: spec.PoolIndex, place: Place, query_features: int) -> None:
        super().__init__(index, place, query_features)
        self.k_norm = self.build_norm()
        self.q_norm = self.build_norm() if index.norm_of == "pools" else None
        self.weights = Linear(place.d_model, index.num_heads, bias=False) if index.head_weights else None
        is_gated = index.pooling == "gated"
        self.pool_gate = Linear(place.d_model, index.head_dim, bias=False) if is_gated else None
        self.pool_bias = nn.Parameter(torch.empty(index.pool, index.head_dim)) if is_gated else None

    def forward(
        self,
        x: Vectors,
        queries: Float[Tensor, "B T r"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:
        x, queries = x.detach(), queries.detach()  # the index's loss must not train the model
        # (B, 1, S, G): keys, and the logits of gates
        keys = self.with_earlier(self._keys(x)[:, None], x, context, state)
        size, count, leaves_out = self.spec.pool, keys.shape[2], self.leaves_out(keys)
        if not (self.learns or leaves_out):  # the scores would change nothing
            return EVERY_KEY
        # a pool competes if the query may see all of its keys
        complete = self._pools(allowed).all(-1)  # (b, 1, t, N)
        scores = self._scores(x, queries, keys, context).masked_fill(~complete[:, 0], MASKED)  # (B, T, N)
        chosen = None
        if leaves_out:
            selected = best_keys(scores.detach(), self.spec.top_pools)
            seen = (selected[:, None] | ~complete).repeat_interleave(size, 3)  # (B, 1, T, N pool)
            seen = nn.functional.pad(seen, (0, size), value=True)[..., :count]
            chosen = context.probe(self, "chosen", allowed & seen)
            scores = scores.masked_fill(~selected, MASKED)
        return Choice(chosen, self.spec.most_keys, scores if self.learns else None)

    def _keys(self, x: Vectors) -> Float[Tensor, "B T G"]:
        keys: Tensor = self.k(x)
        keys = self.k_norm(keys) if self.spec.norm_of == "keys" else keys
        return keys if self.pool_gate is None else torch.cat((keys, self.pool_gate(x).to(keys.dtype)), dim=-1)

    def _pooled(self, keys: Float[Tensor, "B 1 S G"]) -> Float[Tensor, "B 1 N P"]:
        """Return the key of each pool, before its rotation."""
        grouped = self._pools(at_least_float32(keys).transpose(2, 3))  # (B, 1, P, N, pool), or 2 P
        if self.pool_bias is None:
            pooled = grouped.mean(-1)
        else:
            vectors, logits = grouped.chunk(2, dim=2)
            shares = (logits + self.pool_bias.T[:, None].to(logits.dtype)).softmax(-1)
            pooled = (shares.to(keys.dtype) * vectors.to(keys.dtype)).sum(-1)
        pooled = pooled.transpose(2, 3).to(keys.dtype)
        return self.k_norm(pooled) if self.spec.norm_of == "pools" else pooled

    def _scores(
        self, x: Vectors, queries: Float[Tensor, "B T r"], keys: Float[Tensor, "B 1 S G"], context: ForwardContext
    ) -> Float[Tensor, "B T N"]:
        # in float32, as transformers computes them: rounded products would select other pools
        q, pooled = self.rotated(self.heads(self.q(queries), self.q_norm), context), self._pooled(keys)
        firsts = torch.arange(pooled.shape[2], device=x.device)[None] * self.spec.pool
        # other layers use the name of the shared angle tables for different positions
        pooled = self.rotated(pooled, ForwardContext(firsts, None, False, kernels=context.kernels))
        products = at_least_float32(q) @ at_least_float32(pooled).transpose(2, 3)  # (B, H, T, N)
        of_heads = products.relu() / math.sqrt(self.spec.head_dim)
        if self.weights is not None:
            weights = at_least_float32(self.weights(x)).transpose(1, 2) * self.spec.num_heads**-0.5  # (B, H, T)
            of_heads = of_heads * weights[..., None]
        return of_heads.sum(1)

    def loss(self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext) -> Float[Tensor, ""]:
        """Return KL(attended pools || softmax of scores), averaged over queries that are not padding, and weighted."""
        assert choice.scores is not None
        target = self._pools(attended).sum(-1).masked_fill(choice.scores == MASKED, 0.0)  # (B, T, N)
        target = target / target.sum(-1, keepdim=True).clamp(min=1e-20)
        return self.spec.loss_weight * mean_divergence(choice.scores.log_softmax(-1), target, context)

    def _pools(self, x: Tensor) -> Tensor:
        # (..., S) to (..., N, pool), without the keys behind the last pool
        size, length = self.spec.pool, x.shape[-1]
        if is_symbolic(length):  # as many pools as torch can prove to hold all keys; the last are not complete
            return nn.functional.pad(x, (0, (size - 1) * length)).unflatten(-1, (length, size))
        return x[..., : length // size * size].unflatten(-1, (-1, size))
