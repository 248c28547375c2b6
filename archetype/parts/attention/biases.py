"""Position biases of attention scores: per pair of positions, or depending on the queries too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.nn.context import ForwardContext
from archetype.parts.attention.core import attend
from archetype.parts.attention.projections import Heads, RowKeys
from archetype.parts.position.module import QueryBias, ScoreBias

if TYPE_CHECKING:
    from archetype.parts.attention.module import Attention


def score_bias(module: nn.Module) -> ScoreBias | QueryBias:
    """Return the module of positions that do not rotate, after checking its class.

    Raises:
        SpecError: it is neither a `ScoreBias` nor a `QueryBias`.
    """
    if isinstance(module, ScoreBias | QueryBias):
        return module
    cause = f"{type(module).__name__} is neither a Rotation nor a ScoreBias"
    raise SpecError("position", cause, "derive the module from one of them (archetype.parts.position.module)")


def biased(bias: nn.Module, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the position bias of the scores, (b, H, T, S), with minus infinity for masked pairs."""
    scores: Tensor = bias(queries, keys)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def mask_of_queries(attention: Attention, q: Heads, context: ForwardContext, keys: Tensor) -> Tensor:
    """Return what the queries add to their scores, with minus infinity for masked pairs, (B, H, T, S)."""
    added: Tensor = attention.score_bias(q, context.shared_positions, keys, context)  # type: ignore[misc]
    return (added * attention.score_function.scale).masked_fill(~attention.allowed(context, keys), -math.inf)


def attend_with_queries(
    attention: Attention, q: Heads, k: RowKeys, v: RowKeys, context: ForwardContext, keys: Tensor
) -> Heads:
    """Attend with a position bias that depends on the queries.

    Args:
        attention: module with a `QueryBias`.
        q: queries (B, H, T, P).
        k: keys (B, K, S, P).
        v: values (B, K, S, P).
        context: forward context.
        keys: positions of the keys, (b, S).
    """
    assert isinstance(attention.score_bias, QueryBias)
    mask = mask_of_queries(attention, q, context, keys)
    return attend(attention.score_bias.shifted(q), k, v, attention.score_function, mask)
