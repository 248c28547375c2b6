"""Attention to a sliding window and to pooled earlier positions, with or without a state."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.nn.cache import KeepsKeys, RingKVCache, write_slots
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import after_newest
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.selection import Choice, best_keys, learn, mean_divergence
from archetype.nn.symbolic import is_symbolic
from archetype.parts.attention.core import attend, attention_weights
from archetype.parts.compressed_attention import spec
from archetype.parts.lightning_index.module import relevances
from archetype.parts.pattern.scores import MASKED, ScoreFunction, at_least_float32, near_pairs
from archetype.parts.position.module import Rotary
from archetype.weights.linear import Linear, matrix_of


@dataclass
class PooledState(LayerState):
    """Pooled keys: slot s holds window s. And the projections of the positions that later windows still need."""

    keys: Float[Tensor, "B 1 S P"]
    newest: Float[Tensor, "B C W"]


@dataclass
class CompressedState(LayerState):
    """Keys of the window, in two parts of their features, and the states of both poolings."""

    window: RingKVCache
    pooled: PooledState
    index: PooledState | None


class Pool(nn.Module):
    """Pooled vectors of windows of positions, one for each `rate` positions (DeepSeek-AI 2026, section 2.3).

    Args:
        features: width of a pooled vector.
    """

    parameter_roles: ClassVar = {"offsets": "vector"}  # added to the logits of a window's positions
    initial_values: ClassVar = {"offsets": 0.0}

    def __init__(self, attention: spec.CompressedAttention, features: int, d_model: int) -> None:
        super().__init__()
        assert attention.pooling is not None
        self.rate, self.overlap = attention.pooling.rate, attention.pooling.overlap
        width = features * (2 if self.overlap else 1)
        self.reach = self.rate * (2 if self.overlap else 1)  # positions of which a vector is made
        self.kv, self.gate = (Linear(d_model, width, bias=False) for _ in range(2))
        self.offsets = nn.Parameter(torch.empty(self.rate, width))
        self.norm = build_norm(attention.norm, features)

    def new_state(
        self, batch: int, capacity: int, features: int, dtype: torch.dtype, device: torch.device
    ) -> PooledState:
        slots = capacity // self.rate + 1  # the last is open
        keys = torch.zeros(batch, 1, slots, features, dtype=dtype, device=device)
        newest = torch.zeros(batch, 2 * self.kv.out_features, self.reach - 1, dtype=dtype, device=device)
        return PooledState(keys, newest)

    def forward(
        self, x: Vectors, context: ForwardContext, state: PooledState | None
    ) -> tuple[Float[Tensor, "B N P"], Int[Tensor, "b N"]]:
        """Return the vectors of all windows that these positions may complete, and the windows' numbers.

        The vector of a window that is still open means nothing.
        """
        inputs = torch.cat((self.kv(x), self.gate(x)), dim=-1).transpose(1, 2)  # (B, C, T)
        starts, count = torch.zeros(1, dtype=torch.long, device=x.device), x.shape[1] // self.rate
        if state is not None:
            inputs, newest = after_newest(inputs, context, state.newest)
            state.newest = newest.to(state.newest.dtype)
            starts, count = context.positions[:, 0], count + 1
        if is_symbolic(x.shape[1]):  # a size that torch can prove to hold all windows
            count = x.shape[1]
        windows = starts[:, None] // self.rate + torch.arange(count, device=x.device)  # (b, N)
        steps = torch.arange(self.reach, device=x.device) - (self.reach - self.rate)
        positions = windows[..., None] * self.rate + steps  # (b, N, reach)
        before = inputs.shape[2] - x.shape[1]  # earlier positions among the inputs
        index = (positions - starts[:, None, None] + before).clamp(0, max(inputs.shape[2] - 1, 0))
        index = index.flatten(1)[:, None].expand(x.shape[0], inputs.shape[1], -1)
        values, logits = inputs.gather(2, index).unflatten(2, (count, self.reach)).chunk(2, 1)  # (B, C / 2, N, reach)
        logits = logits + self.offsets.mT.to(logits.dtype).repeat(1, self.reach // self.rate)[:, None]
        if self.overlap:  # of the window before the first features, of its own the others
            values, logits = (self._halves(y) for y in (values, logits))
        logits = at_least_float32(logits).masked_fill((positions < 0)[:, None], MASKED)
        pooled = (values * logits.softmax(-1).to(values.dtype)).sum(-1)  # (B, P, N)
        return self.norm(pooled.transpose(1, 2)), windows

    def _halves(self, x: Float[Tensor, "B C N reach"]) -> Float[Tensor, "B P N reach"]:
        first, second = x.chunk(2, 1)
        return torch.cat((first[..., : self.rate], second[..., self.rate :]), dim=-1)


class PooledIndex(nn.Module):
    """Index over pooled keys, with separate pooling weights (DeepSeek-AI 2026, section 2.3.1)."""

    def __init__(self, attention: spec.CompressedAttention, index: spec.PooledIndex, d_model: int) -> None:
        super().__init__()
        self.spec = index
        self.q = Linear(attention.query_rank, index.num_heads * index.head_dim, bias=False)
        self.weights = Linear(d_model, index.num_heads, bias=False)
        self.pool = Pool(attention, index.head_dim, d_model)

    def loss(self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext) -> Float[Tensor, ""]:
        assert choice.scores is not None
        return self.spec.loss_weight * mean_divergence(choice.scores.log_softmax(-1), attended, context)


@module_for(spec.CompressedAttention)
class CompressedAttention(KeepsKeys, nn.Module):
    """Attention to a window and to pooled keys; keys are also the values (DeepSeek-AI 2026, section 2.3).

    The mask of whole sequences is computed in full.
    """

    probes: ClassVar = {"q": "B H T P", "k": "B 1 S P", "allowed": "B 1 T S", "heads": "B H T P"}
    initial_values: ClassVar = {"sinks": 0.0}
    keeps_int8 = False

    def __init__(self, attention: spec.CompressedAttention, place: Place) -> None:
        super().__init__()
        self.spec, d_model = attention, place.d_model
        heads, size, rank = attention.num_heads, attention.head_dim, attention.query_rank
        self.q_down, self.q_norm = Linear(d_model, rank, bias=False), build_norm(attention.norm, rank)
        self.q_up, self.query_norm = Linear(rank, heads * size, bias=False), build_norm(attention.query_norm, size)
        self.kv, self.kv_norm = Linear(d_model, size, bias=False), build_norm(attention.norm, size)
        self.sinks = nn.Parameter(torch.empty(heads))
        groups = attention.groups
        # its matrix is read in groups, so it is never quantized
        self.o_down = nn.Linear(heads * size // groups, groups * attention.group_rank, bias=False)
        self.o_up = Linear(groups * attention.group_rank, d_model, bias=False)
        self.rotary = Rotary(attention.position, attention.rotary_sizes)
        back = attention.position.replace(reversed=not attention.position.reversed)
        self.rotary_back = Rotary(back, attention.rotary_sizes)
        self.pool = None if attention.pooling is None else Pool(attention, size, d_model)
        self.index = None if attention.index is None else PooledIndex(attention, attention.index, d_model)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState:
        dtype = self.cache_dtype or dtype
        sizes = self.spec.head_dim - self.spec.rotated, self.spec.rotated
        slots = min(self.spec.window, capacity)
        window = RingKVCache.empty(batch, 1, slots, sizes, dtype, device)
        assert isinstance(window, RingKVCache)
        if self.pool is None:
            return window
        pooled = self.pool.new_state(batch, capacity, self.spec.head_dim, dtype, device)
        index = None
        if self.index is not None:
            index = self.index.pool.new_state(batch, capacity, self.index.spec.head_dim, dtype, device)
        return CompressedState(window, pooled, index)

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        low = self.q_norm(self.q_down(x))  # (B, T, r)
        q = self.query_norm(self.q_up(low).unflatten(-1, (self.spec.num_heads, -1))).transpose(1, 2)  # (B, H, T, P)
        q = context.probe(self, "q", self._rotated(q, context.positions, context))
        keys, allowed = self._window(x, context, state)
        score = self.score_function
        choice = None
        if self.pool is not None:
            pooled, choice = self._pooled(x, low, context, state)
            assert choice.keys is not None
            keys = torch.cat((keys, pooled.to(keys.dtype)), dim=2)
            allowed = torch.cat((allowed.expand(choice.keys.shape[0], -1, -1, -1), choice.keys), dim=3)
        if state is None:
            keys, allowed = context.probes(self, k=keys, allowed=allowed)
        if choice is not None and self.index is not None:
            first = keys.shape[2] - choice.keys.shape[3]  # type: ignore[union-attr]
            learn(self.index, choice, lambda: attention_weights(q, keys, score, allowed)[..., first:], context)
        y = attend(q, keys, keys, score, allowed, kernels=context.kernels)
        # the keys were rotated, and they are the values: what is left is their distance
        y = context.probe(self, "heads", self._rotated(y, context.positions, context, self.rotary_back))
        grouped = y.transpose(1, 2).flatten(2).unflatten(-1, (self.spec.groups, -1))  # (B, T, g, H P / g)
        down = matrix_of(self.o_down).unflatten(0, (self.spec.groups, -1))  # (g, r_g, H P / g)
        return self.o_up(torch.einsum("btgi,gri->btgr", grouped, down.to(grouped.dtype)).flatten(2))

    @property
    def score_function(self) -> ScoreFunction:
        return ScoreFunction(self.spec.head_dim**-0.5, sinks=self.sinks)

    def _rotated(
        self,
        x: Float[Tensor, "B H T P"],
        positions: Int[Tensor, "b T"],
        context: ForwardContext,
        by: Rotary | None = None,
    ) -> Float[Tensor, "B H T P"]:
        plain, turned = x.split((x.shape[-1] - self.spec.rotated, self.spec.rotated), dim=-1)
        return torch.cat((plain, (by or self.rotary)(turned, positions, context)), dim=-1)

    def _window(
        self, x: Vectors, context: ForwardContext, state: LayerState | None
    ) -> tuple[Float[Tensor, "B 1 S P"], Bool[Tensor, "b 1 T S"]]:
        # keys of the window and of the new positions, and which of them each query sees
        keys = self._rotated(self.kv_norm(self.kv(x))[:, None], context.positions, context)  # (B, 1, T, P)
        positions = context.shared_positions
        if state is not None:
            window = state.window if isinstance(state, CompressedState) else state
            assert isinstance(window, RingKVCache)
            plain, turned = keys.split((self.spec.head_dim - self.spec.rotated, self.spec.rotated), dim=-1)
            plain, turned, positions = window.append(plain, turned, context)
            keys = torch.cat((plain, turned), dim=-1).to(x.dtype)
        return keys, near_pairs(context.shared_positions, positions, self.spec.window)

    def _pooled(
        self, x: Vectors, low: Float[Tensor, "B T r"], context: ForwardContext, state: LayerState | None
    ) -> tuple[Float[Tensor, "B 1 S P"], Choice]:
        # pooled keys of all windows, and those that each query sees: complete ones, and of these the index's choice
        assert self.pool is not None
        states = (state.pooled, state.index) if isinstance(state, CompressedState) else (None, None)
        pooled = self._windows(self.pool, x, context, states[0])
        ends = context.shared_positions + 1
        complete = torch.arange(pooled.shape[2], device=x.device) < (ends // self.pool.rate)[..., None]  # (b, T, S)
        allowed = complete[:, None].expand(x.shape[0], -1, -1, -1)
        if self.index is None:
            return pooled, Choice(allowed)
        x, low = x.detach(), low.detach()  # the index's loss must not train the model
        index, learns = self.index.spec, self.training and self.spec.adds_to_loss
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
            keys = self._windows(self.index.pool, x, context, states[1])
            leaves_out = is_symbolic(keys.shape[2]) or keys.shape[2] > index.top_k
            if not (learns or leaves_out):
                return pooled, Choice(allowed)
            heads = self.index.q(low).unflatten(-1, (index.num_heads, -1)).transpose(1, 2)
            scores = relevances(self._rotated(heads, context.positions, context), keys, self.index.weights(x))
            scores = scores.masked_fill(~complete, MASKED)
        if leaves_out:
            allowed = allowed & best_keys(scores.detach(), index.top_k)[:, None]
            scores = scores.masked_fill(~allowed[:, 0], MASKED)
        return pooled, Choice(allowed, 0, scores if learns else None)

    def _windows(
        self, pool: Pool, x: Vectors, context: ForwardContext, state: PooledState | None
    ) -> Float[Tensor, "B 1 S P"]:
        vectors: Tensor
        vectors, windows = pool(x, context, state)
        if not windows.shape[1]:  # the text is shorter than a window
            return vectors.unsqueeze(1)
        # tables of angles are shared under a name by which other layers mean other positions
        there = ForwardContext(windows * pool.rate, None, False, kernels=context.kernels)
        keys = self._rotated(vectors[:, None], there.positions, there)  # (B, 1, N, P)
        if state is None:
            return keys
        # padding may be beyond the last slot, and is not written
        count = None if context.num_tokens is None else torch.full_like(windows[:, 0], windows.shape[1])
        write_slots(state.keys, keys, ForwardContext(windows, count, False, kernels=context.kernels))
        return state.keys.to(x.dtype)
