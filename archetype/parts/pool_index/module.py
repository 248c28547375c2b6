"""Pool index: pooled keys, their scores, and the best pools of each query."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.nn.cache import KeepsKeys, LayerState, write_slots
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.selection import EVERY_KEY, Choice, IndexKeys, KeySelector, best_keys, mean_divergence
from archetype.parts.pattern.scores import MASKED, at_least_float32
from archetype.parts.pool_index import spec
from archetype.parts.position.module import Rotary
from archetype.weights.linear import Linear


@module_for(spec.PoolIndex)
class PoolIndex(KeepsKeys, KeySelector):
    """Select the pools with the largest sum_h relu(q_h k), and the keys that are in no complete pool."""

    keeps_int8 = False

    def __init__(self, index: spec.PoolIndex, place: Place, query_features: int) -> None:
        super().__init__()
        self.spec = index
        self.q = Linear(query_features, index.num_heads * index.head_dim, bias=False)
        self.k = Linear(place.d_model, index.head_dim, bias=False)
        self.k_norm = None if index.norm.is_absent else build_norm(index.norm, index.head_dim)
        has_query_norm = not index.norm.is_absent and index.norm_of == "pools"
        self.q_norm = build_norm(index.norm, index.head_dim) if has_query_norm else None
        self.weights = Linear(place.d_model, index.num_heads, bias=False) if index.head_weights else None
        is_gated = index.pooling == "gated"
        self.pool_gate = Linear(place.d_model, index.head_dim, bias=False) if is_gated else None
        self.pool_bias = nn.Parameter(torch.empty(index.pool, index.head_dim)) if is_gated else None
        self.rotary = None if index.position is None else Rotary(index.position, index.sizes)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        if is_bias := name == "pool_bias":
            tensor.zero_()
        return is_bias

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> IndexKeys:
        """Return an empty cache of all keys, which are pooled when read."""
        return IndexKeys.empty(batch, capacity, self.spec.key_features, self.cache_dtype or dtype, device)

    def forward(
        self,
        x: Vectors,
        queries: Float[Tensor, "B T r"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:
        x, queries = x.detach(), queries.detach()  # the index's loss must not train the model
        keys = self._keys(x)[:, None]  # (B, 1, T, G): keys, and the logits of gates
        if state is not None:
            assert isinstance(state, IndexKeys)
            write_slots(state.keys, keys, context)
            keys = state.keys.to(x.dtype)  # (B, 1, S, G), every slot
        size, count = self.spec.pool, keys.shape[2]
        learns, leaves_out = self.training and self.spec.adds_to_loss, count // size > self.spec.top_pools
        if not (learns or leaves_out):  # the scores would change nothing
            return EVERY_KEY
        # a pool competes if the query may see all of its keys
        complete = self._pools(allowed).all(-1)  # (b, 1, t, N)
        scores = self._scores(x, queries, keys, context).masked_fill(~complete[:, 0], MASKED)  # (B, T, N)
        chosen = None
        if leaves_out:
            selected = best_keys(scores.detach(), self.spec.top_pools)
            seen = (selected[:, None] | ~complete).repeat_interleave(size, 3)  # (B, 1, T, N pool)
            seen = nn.functional.pad(seen, (0, count - seen.shape[3]), value=True)
            chosen = context.probe(self, "chosen", allowed & seen)
            scores = scores.masked_fill(~selected, MASKED)
        return Choice(chosen, (self.spec.top_pools + 1) * size - 1, scores if learns else None)

    def _keys(self, x: Vectors) -> Float[Tensor, "B T G"]:
        keys: Tensor = self.k(x)
        if self.k_norm is not None and self.spec.norm_of == "keys":
            keys = self.k_norm(keys)
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
        return self.k_norm(pooled) if self.k_norm is not None and self.spec.norm_of == "pools" else pooled

    def _scores(
        self, x: Vectors, queries: Float[Tensor, "B T r"], keys: Float[Tensor, "B 1 S G"], context: ForwardContext
    ) -> Float[Tensor, "B T N"]:
        # in float32, as transformers computes them: rounded products would select other pools
        q = self.q(queries).unflatten(-1, (self.spec.num_heads, -1))  # (B, T, H, P)
        q = (q if self.q_norm is None else self.q_norm(q)).transpose(1, 2)
        pooled = self._pooled(keys)
        if self.rotary is not None:
            q = self.rotary(q, context.positions, context)
            firsts = torch.arange(pooled.shape[2], device=x.device)[None] * self.spec.pool
            # tables of angles are shared under a name by which other layers mean other positions
            there = ForwardContext(firsts, None, False, kernels=context.kernels)
            pooled = self.rotary(pooled, there.positions, there)
        products = at_least_float32(q) @ at_least_float32(pooled).transpose(2, 3)  # (B, H, T, N)
        of_heads = products.relu() / math.sqrt(self.spec.head_dim)
        if self.weights is not None:
            weights = at_least_float32(self.weights(x)).transpose(1, 2) * self.spec.num_heads**-0.5  # (B, H, T)
            of_heads = of_heads * weights[..., None]
        scores: Tensor = of_heads.sum(1)
        return scores

    def loss(self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext) -> Float[Tensor, ""]:
        """Return KL(attended pools || softmax of scores), averaged over queries that are not padding, and weighted."""
        assert choice.scores is not None
        target = self._pools(attended).sum(-1).masked_fill(choice.scores == MASKED, 0.0)  # (B, T, N)
        target = target / target.sum(-1, keepdim=True).clamp(min=1e-20)
        return self.spec.loss_weight * mean_divergence(choice.scores.log_softmax(-1), target, context)

    def _pools(self, x: Tensor) -> Tensor:
        # (..., S) to (..., N, pool), without the keys behind the last pool
        whole = x.shape[-1] // self.spec.pool * self.spec.pool
        pools: Tensor = x[..., :whole].unflatten(-1, (-1, self.spec.pool))
        return pools
