"""Sparse attention in tiles: only pairs of positions in tiles with allowed pairs are computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from archetype.nn.dropout import dropout
from archetype.parts.pattern.scores import MASKED, ScoreFunction, at_least_float32
from archetype.roles.pattern import MaskContext, Pattern, Piece, pattern_rule

Bias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Tiles:
    """A piece of a pattern as indices: m tiles of a queries and j keys each."""

    queries: Int[Tensor, "m a"]
    keys: Int[Tensor, "m j"]
    allowed: Bool[Tensor, "m a j"]
    place: Int[Tensor, "T"]  # index of each query among the m a tile rows; arbitrary if it is in no tile
    absent: Bool[Tensor, "T"] | None  # queries in no tile


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors must be usable in training, even if first requested in inference mode
def tiles(pattern: Pattern, context: MaskContext, device: torch.device) -> tuple[Tiles, ...]:
    """Return the non-empty pieces of a pattern as index tensors."""
    return tuple(
        _indices(pattern, context, piece, device) for piece in pattern_rule(pattern).pieces(context) if all(piece.shape)
    )


def _indices(pattern: Pattern, context: MaskContext, piece: Piece, device: torch.device) -> Tiles:
    count, most_queries, most_keys = piece.shape
    queries, keys = torch.full((count, most_queries), -1), torch.full((count, most_keys), -1)
    for index, tile in enumerate(piece.tiles):
        queries[index, : len(tile.queries)] = _ranged(tile.queries)
        positions = torch.cat([_ranged(part) for part in tile.keys])
        keys[index, : len(positions)] = positions
    i, j = queries[:, :, None], keys[:, None, :]  # (m, a, 1), (m, 1, j)
    allowed = (i >= 0) & (j >= 0)  # tiles with fewer positions are padded with -1
    i, j = i.clamp(min=0), j.clamp(min=0)
    # each allowed pair belongs to exactly one piece, so that combined results count it once
    allowed = allowed & pattern_rule(pattern).allows(i, j, context) & piece.owns(i, j)
    # the inverse of `queries`: where in (m, a) a position is
    slots = torch.full((context.length,), -1)
    is_used = queries.flatten() >= 0
    slots[queries.flatten()[is_used]] = torch.arange(queries.numel())[is_used]
    absent = slots < 0
    return Tiles(
        queries.clamp(min=0).to(device),
        keys.clamp(min=0).to(device),
        allowed.to(device),
        slots.clamp(min=0).to(device),
        absent.to(device) if absent.any() else None,
    )


def _ranged(positions: range) -> Tensor:
    return torch.arange(positions.start, max(positions.start, positions.stop), positions.step)


def gather_tiles(
    q: Tensor, k: Tensor, v: Tensor, piece: Tiles, bias: Bias | None, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gather the tiles of a single piece into the batch dimension: q, k, v and the mask."""
    queries, keys, values = (
        _gather(x, positions).transpose(1, 2).flatten(0, 1)  # (B m, H or K, a or j, P)
        for x, positions in ((q, piece.queries), (k, piece.keys), (v, piece.keys))
    )
    mask = piece.allowed[None, :, None]  # (1, m, 1, a, j)
    if valid is not None:
        mask = mask & valid[:, piece.keys][:, :, None, None]
    if bias is not None:
        mask = bias(piece.queries, piece.keys).masked_fill(~mask, -math.inf)  # (1 or B, m, H, a, j)
    return queries, keys, values, mask.expand(q.shape[0], -1, -1, -1, -1).flatten(0, 1)


def scatter_tiles(y: Float[Tensor, "Bm H a Q"], piece: Tiles, batch: int) -> Float[Tensor, "B H T Q"]:
    """Return the results of all tiles in sequence order."""
    tiled = y.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)  # (B, H, m a, Q)
    return tiled.index_select(2, piece.place)


def attend_piece(
    q: Tensor, k: Tensor, v: Tensor, score: ScoreFunction, piece: Tiles, bias: Bias | None, valid: Tensor | None
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H T"]]:
    """Attend within one piece. Return softmax(scores) v over its keys, and the log-sum-exp of each query's scores."""
    batch, heads, shared = q.shape[0], q.shape[1], k.shape[1]
    count, rows_per_tile = piece.queries.shape
    grouped = _gather(q, piece.queries).unflatten(1, (shared, -1)).transpose(2, 3)  # (B, K, m, G, a, P)
    keys, values = _gather(k, piece.keys), _gather(v, piece.keys)  # (B, K, m, j, P)
    scores = at_least_float32(grouped.flatten(3, 4) @ keys.transpose(3, 4)) * score.scale  # (B, K, m, G a, j)
    scores = score.apply_softcap(scores).unflatten(3, (-1, rows_per_tile))  # (B, K, m, G, a, j)
    if bias is not None:
        added = bias(piece.queries, piece.keys)  # (m, H, a, j)
        scores = scores + added.unflatten(1, (shared, -1)).permute(1, 0, 2, 3, 4)
    allowed = piece.allowed[:, None]  # (m, 1, a, j)
    if valid is not None:
        allowed = allowed & valid[:, piece.keys][:, None, :, None, None]
    scores = scores.masked_fill(~allowed, MASKED)
    weights, total, peak = score.exponentials(scores)  # (B, K, m, G, a, j), (B, K, m, G, a, 1) twice
    weights = dropout(weights, score.dropout).to(values.dtype)
    mixed = (weights.flatten(3, 4) @ values).unflatten(3, (-1, rows_per_tile)) / total  # (B, K, m, G, a, Q)
    mixed = mixed.to(values.dtype).transpose(2, 3).reshape(batch, heads, count * rows_per_tile, -1)  # (B, H, m a, Q)
    sums = (peak + total.log()).transpose(2, 3).reshape(batch, heads, count * rows_per_tile)
    mixed, sums = mixed.index_select(2, piece.place), sums.index_select(2, piece.place)
    # a query in no tile gets no weight when pieces are combined
    return mixed, sums if piece.absent is None else sums.masked_fill(piece.absent, MASKED)


def _gather(x: Float[Tensor, "B H T P"], positions: Int[Tensor, "m a"]) -> Float[Tensor, "B H m a P"]:
    return x.index_select(2, positions.flatten()).unflatten(2, positions.shape)
