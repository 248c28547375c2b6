"""The core of attention: softmax of scores over the allowed pairs, times the values."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.native import attention as native
from archetype.native import fused
from archetype.native.kernels import FUSED, Kernels
from archetype.nn.dropout import dropout
from archetype.nn.symbolic import is_symbolic
from archetype.parts.attention.projections import Heads
from archetype.parts.pattern.scores import MASKED, ScoreFunction, of_symbolic_length
from archetype.parts.pattern.tiles import Bias, Tiles, attend_piece, gather_tiles, scatter_tiles


def attend(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S Q"],
    score: ScoreFunction,
    mask: Tensor | None = None,
    causal: bool = False,
    kernels: Kernels = FUSED,
) -> Float[Tensor, "B H T Q"]:
    """Return softmax(scores) v, with the softmax in at least float32.

    A query whose keys are all masked gets an arbitrary finite vector.

    Args:
        q: queries of H heads.
        k: keys of K heads; each serves H / K query heads.
        v: values of K heads.
        score: the score function.
        mask: (b, h, T, S): boolean, False where masked; or numbers added to the scores, -inf where masked.
        causal: the queries are the last T of S positions and see keys up to their own. The mask must be None.
        kernels: kernels of the forward context.
    """
    if kernels.records and (y := attend_few(kernels, q, k, v, score, mask, causal)) is not None:
        return y
    assert mask is None or not causal
    value_width = v.shape[3]
    k, v = k.to(q.dtype), v.to(q.dtype)  # a cache may have lower precision
    if score.is_scaled_product and (is_symbolic(q.shape[2]) or q.shape[2] > 1):
        if q.shape[3] != value_width:
            # torch's CPU kernel needs keys as wide as values; without the kernel all weights would be stored
            q, k, v = _equally_wide(q, k, v)
            return attend(q, k, v, score, mask, causal, kernels)[..., :value_width]
        if mask is None and not score.dropout and (y := fused.attention(q, k, v, score.scale, causal)) is not None:
            return y
        if causal and not is_symbolic(q.shape[2]) and q.shape[2] != k.shape[2]:
            mask, causal = last_pairs(q, k), False
        mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
        return nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            score.dropout,
            causal,
            scale=score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    k, v = of_symbolic_length(q, k, v)
    return mixed(dropout(attention_weights(q, k, score, mask, causal), score.dropout).to(q.dtype), v)


def mixed(weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B K S Q"]) -> Float[Tensor, "B H T Q"]:
    """Return the sums of values by their weights."""
    # the H / K query heads of a key head become rows of one product: (B, K, H/K T, S) @ (B, K, S, Q)
    return (weights.reshape(*v.shape[:2], -1, v.shape[2]) @ v).view(*weights.shape[:3], v.shape[3])


def _equally_wide(*tensors: Tensor) -> list[Tensor]:
    # (..., P) each; zeros change no product of queries and keys, and those added to values are cut off again
    features = max(x.shape[-1] for x in tensors)
    return [nn.functional.pad(x, (0, features - x.shape[-1])) if x.shape[-1] < features else x for x in tensors]


def attention_weights(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K S P"],
    score: ScoreFunction,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T S"]:
    """Return softmax(scores) before dropout. Takes the arguments of `attend`."""
    scores = score.scores(q, k)  # (B, H, T, S)
    if causal:
        mask = last_pairs(q, k)
    if mask is not None:
        masked = scores.masked_fill(~mask, MASKED) if mask.dtype == torch.bool else scores + mask
        # a finite minimum: with -inf, a query whose keys are all masked would get NaN
        scores = masked.clamp(min=MASKED)
    return score.softmax(scores)


def last_pairs(q: Float[Tensor, "B H T P"], k: Float[Tensor, "B K S P"]) -> Bool[Tensor, "T S"]:
    """Return the causal mask of queries that are the last T of S positions."""
    length, keys = q.shape[2], k.shape[2]
    return torch.ones(length, keys, dtype=torch.bool, device=q.device).tril(keys - length)


def attend_few(
    kernels: Kernels,
    q: Heads,
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S Q"],
    score: ScoreFunction,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T Q"] | None:
    """Record attention of few queries under a mask; None if the native kernel does not support it."""
    if causal or score.additive is not None or not score.has_softmax or k.dtype != v.dtype:
        return None
    sinks = score.native_sinks(q.shape[1])
    return native.attend(kernels, q, k, v, score.scale, softcap=score.softcap, sinks=sinks, mask=mask)


def attend_tiles(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B K T Q"],
    score: ScoreFunction,
    pieces: tuple[Tiles, ...],
    bias: Bias | None = None,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B H T Q"]:
    """Return softmax(scores) v of whole sequences, computed only in the tiles that contain allowed pairs.

    Each piece computes for every query a mean of its values and the log-sum-exp of its scores. With several pieces,
    the means are combined with weights softmax(log-sum-exps), which is exact.
    """
    if len(pieces) == 1:
        queries, keys, values, mask = gather_tiles(q, k, v, pieces[0], bias, valid)  # one batch entry per tile
        return scatter_tiles(attend(queries, keys, values, score, mask), pieces[0], batch=q.shape[0])
    # means (B, H, T, Q) and log-sum-exps (B, H, T) of each piece
    mixtures, sums = zip(*(attend_piece(q, k, v, score, piece, bias, valid) for piece in pieces), strict=True)
    shares = score.shares(torch.stack(sums, dim=-1)).movedim(-1, 0).to(q.dtype)  # (pieces, B, H, T)
    return (shares[..., None] * torch.stack(mixtures)).sum(0)  # (B, H, T, Q)
