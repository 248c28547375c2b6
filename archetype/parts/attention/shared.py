"""Attention under context parallelism: this process's queries, and the keys of whole sequences."""

from functools import partial

import torch
from torch import nn

from archetype.nn.context import ForwardContext
from archetype.parts.attention.core import attend
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs, biased
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.pattern.shared_rows import allowed_in_piece, own_queries
from archetype.roles.pattern import MaskContext


def attend_across_processes(
    pairs: MaskedPairs, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
) -> ValueHeads:
    """Return softmax(scores + bias) v for the two pieces of each sequence that this process computes.

    Args:
        pairs: strategy for the allowed pairs, without key selection or a bias that depends on queries.
        q: queries of this process (B, H, T, P).
        keys: keys and values of all processes (B, K, S, P), in order.
        bias: position bias of the scores (None: no bias).
    """
    shared, outputs = context.rows, []
    assert shared is not None
    where = MaskContext(pairs.causal, keys.k.shape[2], pairs.layer)
    for piece in own_queries(shared, pairs.rule, pairs.causal):
        # Each process has two pieces, one from either end of the sequence, since later queries see more keys.
        mask = allowed_in_piece(shared, pairs.rule, where, piece, context, pairs.pairs_key)
        if bias is not None:
            ends = shared.positions[:, piece.queries], shared.positions[:, piece.keys]
            mask = context.cached((pairs.bias_key, piece.number), partial(biased, bias, *ends, mask))
        k, v = keys.k[:, :, piece.keys], keys.v[:, :, piece.keys]
        outputs.append(attend(q.chunk(2, dim=2)[piece.number], k, v, score, mask, kernels=context.kernels))
    return torch.cat(outputs, dim=2)
