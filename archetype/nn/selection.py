"""Modules that choose the keys that each query of an attention sees, and the state of such an attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.nn.cache import KVCache, LayerState
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.roles.selection import KeySelection


class Choice(NamedTuple):
    """The keys that a selection chooses.

    Attributes:
        keys: True where a query sees a key, a part of the pairs that were allowed; None: it sees all of these.
        most: the most keys that one query sees; 0 where that is not known before.
        scores: of each query and key, of a selection that is to learn in this pass.
    """

    keys: Bool[Tensor, "b 1 T S"] | None = None
    most: int = 0
    scores: Float[Tensor, "B T S"] | None = None

    def can_be_gathered(self, num_queries: int) -> bool:
        """Whether the chosen keys can be looked at alone: those of one query, of which there are not too many."""
        return self.keys is not None and self.most > 0 and num_queries == 1


EVERY_KEY = Choice()


class KeySelector(nn.Module):
    """Base of key selections, made as `Module(spec, place, query_features)`.

    Queries are made from vectors with `query_features` features: the model's own, or those of a low-rank query.
    """

    probes: ClassVar = {"chosen": "b 1 T S"}

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState | None:
        """What it keeps of each position, before a text; None where it keeps nothing."""
        return None

    def forward(
        self, x: Vectors, queries: Float[Tensor, "B T r"], allowed: Bool[Tensor, "b 1 t S"], context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:  # fmt: skip
        """Choose keys for the new positions.

        Args:
            x: vectors of the new positions.
            queries: vectors from which the attention makes its queries.
            allowed: pairs of new positions and keys that the attention allows.
            context: of the pass.
            state: its own, which then holds the new positions too; key s is that of position s. None: the keys are
                those of the new positions.
        """
        raise NotImplementedError

    def loss(
        self, choice: Choice, attended: Float[Tensor, "B T S"], context: ForwardContext
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Return the loss by which it learns; asked for a choice with scores alone.

        Args:
            choice: what it has chosen in this pass.
            attended: the attention's weights of each query, their mean over heads, without a gradient.
            context: of the pass.
        """
        raise NotImplementedError


def build_selection(index: KeySelection | None, place: Place, query_features: int) -> KeySelector | None:
    """The module of a key selection; None for attention without one."""
    if index is None:
        return None
    module = module_class(index)(index, place, query_features)
    assert isinstance(module, KeySelector), f"{type(module).__name__} is no KeySelector"
    return module


def learn(index: KeySelector, choice: Choice, weights: Callable[[], Tensor], context: ForwardContext) -> None:
    """Add the loss of a selection that learns where attention looks.

    Args:
        index: the selection.
        choice: what it has chosen.
        weights: gives the attention's weights, (B, H, T, S).
        context: of the pass.
    """
    if choice.scores is None:
        return
    with torch.no_grad():
        attended = weights().sum(1)
        attended = attended / attended.sum(-1, keepdim=True).clamp(min=1e-20)  # sinks take a share
    context.aux_losses.append(index.loss(choice, attended, context))


class Gathered(NamedTuple):
    """The chosen keys of one query of each row.

    Attributes:
        keys: True where a query sees a key; a row with fewer keys than others has further ones, which it does not see.
        places: of the keys among all.
        buffers: what there is of these keys alone.
    """

    keys: Bool[Tensor, "B 1 1 S"]
    places: Int[Tensor, "B S"]
    buffers: tuple[Tensor, ...]


def gather_chosen(choice: Choice, *buffers: Tensor) -> Gathered:
    """Gather the chosen keys of one query of each row, so that all others are not looked at.

    Args:
        choice: which keys.
        buffers: what there is of all of them, (B, K, S, P) each.
    """
    assert choice.keys is not None
    keys = choice.keys[:, 0, 0].expand(len(buffers[0]), -1)
    places = keys.int().topk(choice.most, sorted=False).indices
    own = places[:, None, :, None]
    gathered = tuple(buffer.gather(2, own.expand(-1, buffer.shape[1], -1, buffer.shape[3])) for buffer in buffers)
    return Gathered(keys.gather(1, places)[:, None, None], places, gathered)


@dataclass
class IndexedKVCache(LayerState):
    """Keys and values of attention, and what its key selection keeps of each position."""

    cache: KVCache
    index: LayerState

    @property
    def can_shorten(self) -> bool:
        """Where both can be."""
        return self.cache.can_shorten and self.index.can_shorten

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        self.cache.copy_rows(sources, starts, ends)
        self.index.copy_rows(sources, starts, ends)

    def narrow(self, slots: int) -> "IndexedKVCache":
        narrow = self.cache.narrow(slots)
        return IndexedKVCache(narrow, self.index.narrow(slots))


def indexed(cache: KVCache, index: LayerState | None) -> LayerState:
    """The state of attention whose selection keeps something, or nothing."""
    return cache if index is None else IndexedKVCache(cache, index)


def without_index(state: LayerState) -> tuple[KVCache, LayerState | None]:
    """The keys and values of attention, and what its selection keeps."""
    cache, index = (state.cache, state.index) if isinstance(state, IndexedKVCache) else (state, None)
    assert isinstance(cache, KVCache)
    return cache, index
