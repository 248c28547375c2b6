"""Native sparse attention, over whole sequences or with a state of all keys and of compressed blocks."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import KeepsKeys, KVCache, write_tokens
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import after_newest
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.selection import EVERY_KEY, Choice, best_blocks, of_blocks
from archetype.nn.symbolic import is_symbolic, num_blocks
from archetype.parts.attention.build import build_pairs
from archetype.parts.attention.core import mixed
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import ChosenPairs
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.native_sparse_attention import spec
from archetype.parts.pattern.scores import MASKED, ScoreFunction, near_pairs, of_symbolic_length
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.module import Rotary
from archetype.roles.pattern import Pattern
from archetype.weights.linear import Linear


@dataclass
class SparseState(LayerState):
    """All keys, and the compressed ones: slot s holds block s.

    With separate keys per branch, also the window's keys and the newest keys, for incomplete blocks.
    """

    selected: KVCache
    keys: Float[Tensor, "B K N P"]
    values: Float[Tensor, "B K N Q"]
    window: KVCache | None
    newest: Float[Tensor, "B channels W"] | None

    def narrow(self, slots: int) -> "SparseState":
        window = None if self.window is None else self.window.narrow(slots)
        return replace(self, selected=self.selected.narrow(slots), window=window)


class BlockMap(nn.Module):
    """Map of the vectors of a block to one vector: down(GELU(up(block + positions)))."""

    parameter_roles: ClassVar = {"positions": "vector"}
    initial_values: ClassVar = {"positions": 0.0}

    def __init__(self, block: int, features: int, hidden: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(block, features))
        self.up = Linear(block * features, hidden, bias=False)
        self.down = Linear(hidden, features, bias=False)

    def forward(self, x: Float[Tensor, "B K N c P"]) -> Float[Tensor, "B K N P"]:
        return self.down(nn.functional.gelu(self.up((x + self.positions.to(x.dtype)).flatten(3))))


class BlockMean(nn.Module):
    """Mean of the vectors of a block."""

    def forward(self, x: Float[Tensor, "B K N c P"]) -> Float[Tensor, "B K N P"]:
        return x.mean(3)


@module_for(spec.NativeSparseAttention)
class NativeSparseAttention(KeepsKeys, nn.Module):
    """Gated sum of attention to compressed blocks, to selected blocks and to a window (Yuan 2025, section 3)."""

    probes: ClassVar = {
        "q": "B H T P", "k": "B K S P", "v": "B K S Q", "chosen": "B K T S", "gates": "B T H 3", "heads": "B H T Q",
    }  # fmt: skip
    keeps_int8 = False

    def __init__(self, mixer: spec.NativeSparseAttention, place: Place) -> None:
        super().__init__()
        self.spec, d_model = mixer, place.d_model
        heads, keys, size, value_size = mixer.num_heads, mixer.kv_heads, mixer.head_dim, mixer.value_width
        self.q = Linear(d_model, heads * size, bias=False)
        self.k, self.v = (
            nn.ModuleDict({branch: Linear(d_model, keys * features, bias=False) for branch in mixer.with_keys})
            for features in (size, value_size)
        )
        self.gate = Linear(d_model, heads * len(spec.BRANCHES), bias=False)
        self.o = Linear(heads * value_size, d_model, bias=False)
        block, hidden = mixer.compression.block, mixer.compression.hidden
        self.compress = nn.ModuleDict({
            name: BlockMean() if hidden is None else BlockMap(block, features, hidden)
            for name, features in (("k", size), ("v", value_size))
        })  # fmt: skip
        position = mixer.position
        self.rotary = None if position is None else Rotary(position, mixer.attention_sizes(d_model))
        self.selected, self.window = (self._pairs(pattern, place) for pattern in (Full(), Window(size=mixer.window)))
        self.score_function = ScoreFunction(size**-0.5)

    def _pairs(self, pattern: Pattern, place: Place) -> ChosenPairs:
        return ChosenPairs(pattern, place, None, every=build_pairs(self.spec.attention(pattern), place, None))

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> SparseState:
        dtype, heads = self.cache_dtype or dtype, self.spec.kv_heads
        sizes = self.spec.head_dim, self.spec.value_width

        selected = self.selected.new_cache(batch, heads, capacity, sizes, dtype, device)
        k, v = (
            torch.zeros(batch, heads, self.spec.blocks(capacity), size, dtype=dtype, device=device) for size in sizes
        )
        if self.spec.shared_keys:
            return SparseState(selected, k, v, None, None)
        newest = torch.zeros(batch, heads * sum(sizes), self.spec.compression.block - 1, dtype=dtype, device=device)
        window = self.window.new_cache(batch, heads, capacity, sizes, dtype, device)
        return SparseState(selected, k, v, window, newest)

    def forward(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        assert state is None or isinstance(state, SparseState)
        q = context.probe(self, "q", self._rotated(self._split(self.q(x), self.spec.head_dim), context))
        new = {branch: self._keys(branch, x, context) for branch in self.spec.with_keys}
        if state is None:
            keys = new["selected"]
            new["selected"] = Keys(context.probe(self, "k", keys.k), context.probe(self, "v", keys.v))
        every = _appended(new["selected"], None if state is None else state.selected, context)
        near = _appended(new["window"], None if state is None else state.window, context) if "window" in new else every
        blocks = self._blocks(new.get("compressed", every), context, state, q.dtype)
        compressed, weights = self._read_blocks(q, blocks, context)
        every = every._replace(choice=self._choice(weights, every, context))
        if state is not None and self.spec.shared_keys:
            near = near._replace(choice=self._near(near, context))
        score = self.score_function
        selected, window = (
            pairs.attend(q, keys, score, None, context) for pairs, keys in ((self.selected, every), (self.window, near))
        )
        gates = torch.sigmoid(self.gate(x)).unflatten(-1, (self.spec.num_heads, -1))
        gates = context.probe(self, "gates", gates).permute(3, 0, 2, 1)[..., None]  # (3, B, H, T, 1)
        heads = context.probe(self, "heads", gates[0] * compressed + gates[1] * selected + gates[2] * window)
        return self.o(heads.transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "B T HP"], features: int) -> Heads:
        return x.unflatten(-1, (-1, features)).transpose(1, 2)

    def _rotated(self, x: Heads, context: ForwardContext) -> Heads:
        return x if self.rotary is None else self.rotary(x, context.positions, context)

    def _keys(self, branch: str, x: Vectors, context: ForwardContext) -> Keys:
        k = self._rotated(self._split(self.k[branch](x), self.spec.head_dim), context)
        return Keys(k, self._split(self.v[branch](x), self.spec.value_width))

    def _blocks(self, keys: Keys, context: ForwardContext, state: SparseState | None, dtype: torch.dtype) -> Keys:
        # compressed keys of whole sequences, or of all slots of the state; those of an open block mean nothing
        tensors, size, step = [keys.k, keys.v], self.spec.compression.block, self.spec.compression.step
        device, length = keys.k.device, context.positions.shape[1]
        if state is None:
            first = start = torch.zeros(1, dtype=torch.long, device=device)
            count = length if is_symbolic(length) else self.spec.blocks(length)
        else:  # as many as the new positions may complete
            starts, count = context.positions[:, 0], length if is_symbolic(length) else -(-length // step)
            first, start = self._complete(starts), torch.zeros_like(starts)
            if state.newest is not None:
                joined = torch.cat(tensors, dim=3).transpose(2, 3).flatten(1, 2)  # (B, K (P + Q), T)
                joined, newest = after_newest(joined, context, state.newest)
                state.newest.copy_(newest)  # in place, since a narrowed state is another object with the same tensors
                start = starts - (size - 1)
                split = joined.unflatten(1, (self.spec.kv_heads, -1)).transpose(2, 3)
                tensors = [*split.split((self.spec.head_dim, self.spec.value_width), dim=3)]
        begins = (first[:, None] + torch.arange(count, device=device)) * step  # (b, N)
        index = (begins - start[:, None])[..., None] + torch.arange(size, device=device)  # (b, N, c)
        index = index.flatten(1).clamp(0, max(tensors[0].shape[2] - 1, 0))[:, None, :, None]
        k, v = (
            self.compress[name](
                x.gather(2, index.expand(*x.shape[:2], -1, x.shape[3])).unflatten(2, (count, size)).to(dtype)
            )
            for name, x in zip("kv", tensors, strict=True)
        )
        if state is None:
            return Keys(k, v)
        slots = torch.arange(state.keys.shape[2], device=device)
        token = torch.where(slots < self._complete(context.ends)[:, None], slots - first[:, None], -1)  # (B, N)
        for buffer, vectors in ((state.keys, k), (state.values, v)):
            write_tokens(buffer, vectors, token)
        return Keys(state.keys, state.values)

    def _complete(self, lengths: Tensor) -> Tensor:
        # how many blocks end within these lengths
        return ((lengths - self.spec.compression.block) // self.spec.compression.step + 1).clamp(min=0)

    def _read_blocks(
        self, q: Heads, blocks: Keys, context: ForwardContext
    ) -> tuple[ValueHeads, Float[Tensor, "B H T N"]]:
        # the sums of compressed values, and the weights, (B, H, T, N)
        k, v = of_symbolic_length(q, blocks.k.to(q.dtype), blocks.v.to(q.dtype))
        is_open = torch.arange(k.shape[2], device=q.device) >= self._complete(context.shared_positions + 1)[..., None]
        is_open = is_open[:, None]  # (b, 1, T, N)
        weights = self.score_function.scores(q, k).masked_fill(is_open, MASKED).softmax(-1)
        weights = weights.masked_fill(is_open, 0.0)  # also where no block is complete
        return mixed(weights.to(q.dtype), v), weights

    def _near(self, keys: Keys, context: ForwardContext) -> Choice:
        # not a mask that layers share: others with the same window keep no other keys
        assert keys.positions is not None
        near = near_pairs(context.shared_positions, keys.positions, self.spec.window)
        return Choice(near, min(self.spec.window, keys.k.shape[2]))

    def _choice(self, weights: Float[Tensor, "B H T N"], keys: Keys, context: ForwardContext) -> Choice:
        selection, compression, count = self.spec.selection, self.spec.compression, keys.k.shape[2]
        most = selection.top_blocks * selection.block
        if not is_symbolic(count) and most >= count:
            return EVERY_KEY
        shares = weights.detach().unflatten(1, (self.spec.kv_heads, -1)).sum(2)  # (B, K, T, N)
        # the weight of each stride of positions: of all compressed blocks that contain it
        overlap, strides = compression.block // compression.step, selection.block // compression.step
        shares = nn.functional.pad(shares, (overlap - 1, overlap - 1)).unfold(3, overlap, 1).sum(-1)
        blocks = num_blocks(count, selection.block)
        shares = nn.functional.pad(shares, (0, blocks * strides)).narrow(3, 0, blocks * strides)
        scores = shares.unfold(3, strides, strides).sum(-1)  # (B, K, T, blocks)
        always = selection.local_blocks, selection.first_blocks
        best = best_blocks(scores, context.shared_positions, selection.block, selection.top_blocks, *always)
        positions = context.shared_positions if keys.positions is None else keys.positions
        chosen = of_blocks(best, selection.block, count) & self.selected.allowed(context, positions)
        return Choice(context.probe(self, "chosen", chosen), most)


def _appended(keys: Keys, cache: KVCache | None, context: ForwardContext) -> Keys:
    if cache is None:
        return keys
    k, v, positions = cache.append(keys.k, keys.v, context)
    return Keys(k, v, positions, cache.is_ring)
