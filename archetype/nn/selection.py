"""Modules that select the keys that each attention query reads, and the state of attention with a selection."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.nn.cache import KVCache
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.nn.symbolic import is_symbolic
from archetype.roles.selection import KeySelection


class Choice(NamedTuple):
    """Keys chosen by a selection."""

    # a subset of the allowed pairs, for all heads (h = 1) or for equal shares of them; None: all allowed pairs
    keys: Bool[Tensor, "b h T S"] | None = None
    most: int = 0  # upper bound on the keys that one query sees; 0 if not known in advance
    # if the selection is trained in this pass: of all heads, or for each of h shares of them
    scores: Float[Tensor, "B T S"] | Float[Tensor, "B h T N"] | None = None

    def can_be_gathered(self, num_queries: int, num_kv_heads: int) -> bool:
        # for a single query, if the number of its keys is bounded
        if self.keys is None or self.keys.shape[1] not in (1, num_kv_heads):
            return False
        return self.most > 0 and num_queries == 1


EVERY_KEY = Choice()


class KeySelector(nn.Module):
    """Base class of key selections, constructed as `Module(spec, place, query_features)`.

    `query_features` is the size of the vectors from which attention computes its queries: d_model, or the query rank.
    """

    probes: ClassVar = {"chosen": "b h T S"}

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState | None:
        """Return the state before the first token; None if the selection has no state."""
        return None

    def forward(
        self,
        x: Vectors,
        queries: Float[Tensor, "B T r"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:
        """Choose keys for the new positions.

        Args:
            queries: vectors from which attention computes its queries.
            allowed: pairs of new positions and keys that attention allows.
            state: state of the selection, updated with the new positions; key s is position s. None: only the new
                positions are keys.
        """
        raise NotImplementedError

    def loss(self, choice: Choice, attended: Tensor, context: ForwardContext) -> Float[Tensor, ""]:
        """Return the training loss of the selection. Called only for a choice with scores.

        Args:
            attended: attention weights of each query without gradient, averaged over all heads, (B, T, S), or over
                each share of heads that has its own scores, (B, h, T, S).
        """
        raise NotImplementedError


def build_selection(index: KeySelection | None, place: Place, query_features: int) -> KeySelector | None:
    if index is None:
        return None
    module = module_class(index)(index, place, query_features)
    assert isinstance(module, KeySelector), f"{type(module).__name__} is not a KeySelector"
    return module


def mean_divergence(
    log_weights: Float[Tensor, "B *dims T S"], attended: Float[Tensor, "B *dims T S"], context: ForwardContext
) -> Float[Tensor, ""]:
    """Return KL(attended || weights), averaged over heads and over queries that are not padding."""
    divergence = nn.functional.kl_div(log_weights, attended, reduction="none").sum(-1)
    divergence = divergence if divergence.dim() == 2 else divergence.mean(1)  # (B, T)
    valid = torch.ones_like(divergence) if context.valid is None else context.valid.to(divergence.dtype)
    return (divergence * valid).sum() / valid.sum().clamp(min=1)


def learn(index: Any, choice: Choice, weights: Callable[[], Tensor], context: ForwardContext) -> None:
    """Add the loss that trains a selection to imitate the attention weights.

    Args:
        index: a module with the `loss` of a `KeySelector`.
        weights: computes the attention weights, (B, H, T, S); called only if needed.
    """
    if choice.scores is None:
        return
    with torch.no_grad():
        by_head = weights()  # (B, H, T, S)
        shares = 1 if choice.scores.dim() == 3 else choice.scores.shape[1]
        attended = by_head.unflatten(1, (shares, -1)).sum(2)  # (B, h, T, S)
        attended = attended[:, 0] if choice.scores.dim() == 3 else attended
        # with attention sinks, the weights sum to less than 1
        attended = attended / attended.sum(-1, keepdim=True).clamp(min=1e-20)
    context.aux_losses.append(index.loss(choice, attended, context))


class Gathered(NamedTuple):
    """Keys chosen for one query per sequence, and their entries gathered from the buffers."""

    keys: Bool[Tensor, "B h 1 S"]  # False for keys that were not chosen, in sequences with fewer than S chosen keys
    slots: Int[Tensor, "B S"] | Int[Tensor, "B h S"]  # indices of the gathered keys among all keys
    buffers: tuple[Tensor, ...]  # gathered: keys, values and the like


def gather_chosen(choice: Choice, *buffers: Tensor) -> Gathered:
    """Gather the chosen keys of a single query per sequence, so that attention reads only these.

    Args:
        buffers: tensors of all keys, (B, K, S, P) each.
    """
    assert choice.keys is not None
    keys = choice.keys[:, :, 0].expand(len(buffers[0]), -1, -1)  # (B, h, S)
    slots = keys.int().topk(choice.most, sorted=False).indices  # (B, h, most), the chosen ones first
    index = slots[..., None]
    gathered = tuple(buffer.gather(2, index.expand(-1, buffer.shape[1], -1, buffer.shape[3])) for buffer in buffers)
    return Gathered(keys.gather(2, slots)[:, :, None], slots[:, 0] if slots.shape[1] == 1 else slots, gathered)


@dataclass
class IndexKeys(LayerState):
    """Key of an index for every position: slot s holds position s."""

    can_shorten: ClassVar[bool] = True
    keys: Float[Tensor, "B 1 S P"]

    @classmethod
    def empty(cls, batch: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> "IndexKeys":
        return cls(torch.zeros(batch, 1, capacity, head_dim, dtype=dtype, device=device))

    def narrow(self, slots: int) -> "IndexKeys":
        return IndexKeys(self.keys[:, :, :slots])


def best_keys(scores: Float[Tensor, "B T S"], count: int) -> Bool[Tensor, "B T S"]:
    """Return True for each query's keys with the largest scores. Ties go to earlier keys."""
    # Many scores tie at zero, for keys that no head finds relevant. Which of these `topk` returns depends on the
    # number of keys, so that results would differ between chunked and whole sequences.
    # of a symbolic number of keys, which may be fewer than are chosen: then the smallest score is minus infinity
    all_scores = nn.functional.pad(scores, (0, count), value=-math.inf) if is_symbolic(scores.shape[-1]) else scores
    least = all_scores.topk(count).values[..., -1:]  # (B, T, 1)
    # scores of equal keys differ by rounding where the keys were computed in passes of other lengths
    rounding = (16 * torch.finfo(scores.dtype).eps * least.abs()).nan_to_num(posinf=0.0)
    above = scores > least + rounding
    equal = ~above & (scores >= least - rounding)
    # of the keys that equal the smallest chosen score, the earliest fill the remaining places
    room = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


def best_blocks(
    scores: Float[Tensor, "B H T N"], positions: Int[Tensor, "b T"], size: int, count: int, local: int, first: int = 0
) -> Bool[Tensor, "B H T N"]:
    """Return True for each query's `count` blocks with the largest scores. Ties go to earlier blocks.

    Args:
        positions: positions of the queries.
        size: positions of a block.
        local: number of blocks that are always selected, up to and including the query's block.
        first: number of blocks at the start of the sequence that are always selected.
    """
    block = torch.arange(scores.shape[3], device=scores.device)
    distance = (positions // size)[:, None, :, None] - block  # (b, 1, T, N)
    always = (distance >= 0) & ((distance < local) | (block < first))
    return best_keys(scores.detach().masked_fill(always, math.inf).flatten(0, 1), count).view_as(scores)


def of_blocks(chosen: Bool[Tensor, "B H T N"], size: int, count: int) -> Bool[Tensor, "B H T S"]:
    """Return for each of `count` keys whether its block is chosen."""
    return chosen.index_select(3, torch.arange(count, device=chosen.device) // size)


@dataclass
class IndexedKVCache(LayerState):
    """Key-value cache of attention together with the state of its key selection."""

    cache: KVCache
    index: LayerState

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        self.cache.copy_rows(sources, starts, ends)
        self.index.copy_rows(sources, starts, ends)


def indexed(cache: KVCache, index: LayerState | None) -> LayerState:
    """Combine a cache with the state of its key selection, if it has one."""
    return cache if index is None else IndexedKVCache(cache, index)


def without_index(state: LayerState) -> tuple[KVCache, LayerState | None]:
    """Split the state of attention into its key-value cache and the state of its key selection."""
    cache, index = (state.cache, state.index) if isinstance(state, IndexedKVCache) else (state, None)
    assert isinstance(cache, KVCache)
    return cache, index
