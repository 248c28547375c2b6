"""softmax(scores) v: over all keys at once, or tile by tile where a pattern allows few pairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype import spec

MASKED = -1e30  # instead of minus infinity where all keys of a query may be masked: infinity less infinity is no number
Bias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ScoreFunction:
    """How a query and a key make a score. `additive`, (H, P), makes it w^T tanh(q + k)."""

    scale: float
    softcap: float | None = None
    additive: Tensor | None = None
    dropout: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether it is nothing but a scaled product, for which torch has a kernel."""
        return self.softcap is None and self.additive is None

    def scores(self, q: Float[Tensor, "B H T P"], k: Float[Tensor, "B K S P"]) -> Float[Tensor, "B H T S"]:
        """All scores, in float32 at least. The G heads that share a key are rows of one product: no key is copied."""
        if self.additive is not None:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            sums = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B, H, T, S, P)
            return _exact(torch.einsum("bhtsp,hp->bhts", sums, self.additive.to(sums.dtype)))
        grouped = q.reshape(*k.shape[:2], -1, q.shape[3])  # (B, K, G T, P)
        scores = _exact(grouped @ k.transpose(2, 3)) * self.scale
        return self.capped(scores.view(*q.shape[:3], k.shape[2]))

    def capped(self, scores: Tensor) -> Tensor:
        """Bent to c tanh(s / c) (Gemma 2)."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def attend(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K S P"],
    v: Float[Tensor, "B K S Q"],
    scoring: ScoreFunction,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T Q"]:
    """softmax(scores) v, softmax in float32 at least. What a query finds that may see nothing is any finite number.

    Args:
        q: queries of H heads.
        k: keys of K heads; each serves H / K heads of queries.
        v: values.
        scoring: how scores are made.
        mask: (b, h, T, S): False, or minus infinity, where a pair is not allowed; other numbers are added.
        causal: T = S and only the causal triangle is allowed; without a mask.
    """
    k, v = k.to(q.dtype), v.to(q.dtype)  # a state may keep fewer bits
    if scoring.plain and q.shape[2] > 1:
        mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
        return nn.functional.scaled_dot_product_attention(
            q, k, v, mask, scoring.dropout, causal, scale=scoring.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    scores = scoring.scores(q, k)
    if causal:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        masked = scores.masked_fill(~mask, MASKED) if mask.dtype == torch.bool else scores + mask
        scores = masked.clamp(min=MASKED)
    weights = nn.functional.dropout(scores.softmax(-1), scoring.dropout).to(q.dtype)
    return (weights.reshape(*v.shape[:2], -1, v.shape[2]) @ v).view(*q.shape[:3], v.shape[3])


@dataclass(frozen=True)
class Tiles:
    """A piece of a pattern as indices: g tiles of a queries and b keys."""

    queries: Int[Tensor, "g a"]
    keys: Int[Tensor, "g b"]
    allowed: Bool[Tensor, "g a b"]
    place: Int[Tensor, "T"]  # of each query among the g a; of one that has none, any
    absent: Bool[Tensor, "T"] | None  # queries that have none


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what an evaluation asks for first, training is given too
def tiles(pattern: spec.Pattern, setting: spec.MaskContext, device: torch.device) -> tuple[Tiles, ...]:
    """The pieces of a pattern that are not empty."""
    return tuple(_indices(pattern, setting, piece, device) for piece in pattern.pieces(setting) if all(piece.shape))


def _indices(pattern: spec.Pattern, setting: spec.MaskContext, piece: spec.Piece, device: torch.device) -> Tiles:
    count, most_queries, most_keys = piece.shape
    queries, keys = torch.full((count, most_queries), -1), torch.full((count, most_keys), -1)
    for index, tile in enumerate(piece.tiles):
        queries[index, : len(tile.queries)] = _ranged(tile.queries)
        seen = torch.cat([_ranged(part) for part in tile.keys])
        keys[index, : len(seen)] = seen
    i, j = queries[:, :, None], keys[:, None, :]
    allowed = (i >= 0) & (j >= 0)
    i, j = i.clamp(min=0), j.clamp(min=0)
    allowed = allowed & pattern.allows(i, j, setting) & piece.owns(i, j)
    place = torch.full((setting.length,), -1)
    there = queries.flatten() >= 0
    place[queries.flatten()[there]] = torch.arange(queries.numel())[there]
    absent = place < 0
    return Tiles(
        queries.clamp(min=0).to(device),
        keys.clamp(min=0).to(device),
        allowed.to(device),
        place.clamp(min=0).to(device),
        absent.to(device) if absent.any() else None,
    )


def _ranged(positions: range) -> Tensor:
    return torch.arange(positions.start, max(positions.start, positions.stop), positions.step)


def attend_tiles(
    q: Float[Tensor, "B H T P"],
    k: Float[Tensor, "B K T P"],
    v: Float[Tensor, "B K T Q"],
    scoring: ScoreFunction,
    pieces: tuple[Tiles, ...],
    bias: Bias | None = None,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B H T Q"]:
    """The same over the allowed pairs only, of a whole text.

    Of several pieces, each gives every query a mixture of its keys' values and the logarithm of the sum of their
    weights; by these sums the mixtures are joined.
    """
    if len(pieces) == 1:
        return _attend_alone(q, k, v, scoring, pieces[0], bias, valid)
    found = [_attend_piece(q, k, v, scoring, piece, bias, valid) for piece in pieces]
    shares = torch.stack([sums for _, sums in found]).softmax(0).to(q.dtype)
    mixtures = [share[..., None] * mixture for share, (mixture, _) in zip(shares, found, strict=True)]
    return torch.stack(mixtures).sum(0)


def _attend_alone(
    q: Tensor, k: Tensor, v: Tensor, scoring: ScoreFunction, piece: Tiles, bias: Bias | None, valid: Tensor | None
) -> Float[Tensor, "B H T Q"]:
    """Of the only piece, the tiles are texts of their own, side by side in the batch."""
    batch, sides = q.shape[0], ((q, piece.queries), (k, piece.keys), (v, piece.keys))
    queries, keys, values = (_gather(x, places).transpose(1, 2).flatten(0, 1) for x, places in sides)
    mask = piece.allowed[None, :, None]  # (1, g, 1, a, b)
    if valid is not None:
        mask = mask & valid[:, piece.keys][:, :, None, None]
    if bias is not None:
        mask = bias(piece.queries, piece.keys).masked_fill(~mask, -math.inf)  # (1 or B, g, H, a, b)
    mask = mask.expand(batch, -1, -1, -1, -1).flatten(0, 1)
    y: Tensor = attend(queries, keys, values, scoring, mask).unflatten(0, (batch, -1))  # (B, g, H, a, Q)
    return y.transpose(1, 2).flatten(2, 3).index_select(2, piece.place)


def _attend_piece(
    q: Tensor, k: Tensor, v: Tensor, scoring: ScoreFunction, piece: Tiles, bias: Bias | None, valid: Tensor | None
) -> tuple[Float[Tensor, "B H T Q"], Float[Tensor, "B H T"]]:
    batch, heads, shared = q.shape[0], q.shape[1], k.shape[1]
    count, rows = piece.queries.shape
    grouped = _gather(q, piece.queries).unflatten(1, (shared, -1)).transpose(2, 3)  # (B, K, g, G, a, P)
    keys, values = _gather(k, piece.keys), _gather(v, piece.keys)  # (B, K, g, b, P)
    scores = _exact(grouped.flatten(3, 4) @ keys.transpose(3, 4)) * scoring.scale
    scores = scoring.capped(scores).unflatten(3, (-1, rows))  # (B, K, g, G, a, b)
    if bias is not None:
        added = bias(piece.queries, piece.keys)  # (g, H, a, b)
        scores = scores + added.unflatten(1, (shared, -1)).permute(1, 0, 2, 3, 4)
    allowed = piece.allowed[:, None]  # (g, 1, a, b)
    if valid is not None:
        allowed = allowed & valid[:, piece.keys][:, None, :, None, None]
    scores = scores.masked_fill(~allowed, MASKED)
    peak = scores.detach().amax(-1, keepdim=True)
    weights = (scores - peak).exp()  # up to a factor, which the division takes away
    total = weights.sum(-1, keepdim=True)
    weights = nn.functional.dropout(weights, scoring.dropout).to(values.dtype)
    mixed = (weights.flatten(3, 4) @ values).unflatten(3, (-1, rows)) / total
    mixed = mixed.to(values.dtype).transpose(2, 3).reshape(batch, heads, count * rows, -1)
    sums = (peak + total.log()).transpose(2, 3).reshape(batch, heads, count * rows)
    mixed, sums = mixed.index_select(2, piece.place), sums.index_select(2, piece.place)
    return mixed, sums if piece.absent is None else sums.masked_fill(piece.absent, MASKED)


def _exact(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _gather(x: Float[Tensor, "B H T P"], places: Int[Tensor, "g a"]) -> Float[Tensor, "B H g a P"]:
    gathered: Tensor = x.index_select(2, places.flatten()).unflatten(2, places.shape)
    return gathered
