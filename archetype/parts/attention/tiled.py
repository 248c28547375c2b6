"""Attention of sparse patterns within whole sequences, computed in tiles of pairs."""

import torch
from torch import nn

from archetype.native.torch_hooks import constant_when_compiled
from archetype.nn.context import ForwardContext
from archetype.nn.symbolic import is_symbolic
from archetype.parts.attention.core import attend_tiles
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.pattern.tiles import Tiles, tiles
from archetype.roles.pattern import MaskContext


class TiledPairs(MaskedPairs):
    """Attention to whole sequences in tiles if that saves pairs, and to cached keys under a mask."""

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.positions is not None or context.document_ids is not None:
            return super().attend(q, keys, score, bias, context)
        if is_symbolic(q.shape[2]) or not self.saves_pairs(q.shape[2]):
            return super().attend(q, keys, score, bias, context)
        valid = None if self.causal else context.valid
        return attend_tiles(q, keys.k, keys.v, score, self.tiles(q.shape[2], q.device), bias, valid)

    @constant_when_compiled
    def saves_pairs(self, length: int) -> bool:
        """Whether the tiles of a sequence have fewer pairs than the full matrix."""
        return self.rule.num_computed_pairs(MaskContext(self.causal, length, self.layer)) < length**2

    @constant_when_compiled
    def tiles(self, length: int, device: torch.device) -> tuple[Tiles, ...]:
        return tiles(self.pattern, MaskContext(self.causal, length, self.layer), device)


class PairsByLength(TiledPairs):
    """Attention whose pattern depends on the sequence length: padded batches are computed one length at a time."""

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.positions is not None or context.document_ids is not None or context.num_tokens is None:
            return super().attend(q, keys, score, bias, context)
        y, lengths = q.new_zeros(*q.shape[:3], keys.v.shape[3]), context.num_tokens.clamp(min=1)
        for length in lengths.unique().tolist():
            batch = (lengths == length).nonzero().flatten()  # indices of the sequences of this length
            queries, k, v = (x.index_select(0, batch)[:, :, :length] for x in (q, keys.k, keys.v))
            unpadded = ForwardContext.of(queries[:, 0], kernels=context.kernels)
            y[batch, :, :length] = super().attend(queries, Keys(k, v), score, bias, unpadded)
        return y
