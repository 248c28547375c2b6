"""Attention of a decode step as one native operation, while the step is being recorded."""

import torch
from torch import nn

from archetype.native import attention as native
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention import spec
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.module import Alibi, QueryBias, ScoreBias


class NativeStep:
    """softmax(scores) v over the filled slots of a cache, or over the slots in its window.

    Args:
        window: how many positions a query sees; 0: all.
    """

    def __init__(self, window: int) -> None:
        self.window = window

    def attend(
        self,
        q: Heads,
        keys: Keys,
        score: ScoreFunction,
        bias: nn.Module | None,
        context: ForwardContext,
    ) -> ValueHeads | None:
        """Record attention to a cache that holds the new positions; None for tensors that the kernel does not support.

        Args:
            q: queries (B, H, T, P).
            keys: the buffers of the cache (B, K, S, P).
            score: the score function.
            bias: `Alibi`, or the stack's `RelativeBias` (None: no bias).
            context: forward context.
        """
        if keys.is_ring and (bias is not None or q.shape[2] > 1):  # the kernel knows no distances within a ring
            return None
        slots, slopes, distances = keys.k.shape[2], None, None
        if isinstance(bias, Alibi):
            # the kernel computes the distances itself and needs only a slope per head
            slopes = torch.tensor(bias.slopes)
        elif bias is not None:
            # a table by distance, (1, H, 1, slots): a relative bias depends on the difference of positions only, so the
            # row of the last position has every distance that can occur
            positions = torch.arange(slots)[None]
            distances = context.cached(("distances", slots), lambda: bias(positions[:, -1:], positions))
        return native.attend(
            context.kernels,
            q,
            keys.k,
            keys.v,
            score.scale,
            context.positions,
            is_ring=keys.is_ring,
            softcap=score.softcap,
            window=self.window,
            sinks=score.native_sinks(q.shape[1]),
            slopes=slopes,
            distances=distances,
            scales=keys.scales,
        )


def native_step(attention: spec.Attention, place: Place, bias: ScoreBias | QueryBias | None) -> NativeStep | None:
    """Return the native decode step of a layer; None if the kernel does not compute it.

    The kernel reads every filled slot up to a query's position, or the slots within a window, and adds slopes or biases
    by distance. It supports neither chosen keys nor rotations that change as the sequence grows.

    Args:
        attention: specification of the layer.
        place: its place in the model.
        bias: position bias of the layer (None: no bias, or the stack's).
    """
    pattern = attention.pattern
    is_known = isinstance(pattern, Full | Window) and (bias is None or (isinstance(bias, Alibi) and not bias.rounded))
    is_plain = attention.score != "additive" and attention.index is None and not attention.keys_follow_length
    is_plain = (
        is_plain and attention.differential is None and attention.softmax != "softpick" and not attention.key_bias
    )
    if not (place.causal and is_known and is_plain):
        return None
    return NativeStep(pattern.size if isinstance(pattern, Window) else 0)
