"""Context parallelism: each process has some positions of every row, and attention gathers keys and values of all.

All parts but attention compute each position by itself. Of the 2 N pieces of a row, process n of N has pieces n and
2 N - 1 - n, so that under a causal mask all compute as many pairs. Keys and values are gathered before attention, and
their gradients are summed and scattered behind it (Dubey 2024, section 3.3.2).
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from archetype.models.build import Model
from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext
from archetype.nn.probe import probe
from archetype.parts.attention.core import attend
from archetype.parts.attention.module import Attention
from archetype.parts.latent_attention.module import LatentAttention
from archetype.parts.pattern.scores import allowed_pairs
from archetype.parts.pattern.spec import Full
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule
from archetype.training.objectives.base import IGNORED, Batch, LossOutput, Objective


class WholeRows(NamedTuple):
    """Where all tokens of the rows stand, of which this process computes some."""

    positions: Tensor  # (1 or B, S)
    document_ids: Tensor | None  # (B, S)


class ContextParallel:
    """The positions that this process computes, of every row that a model is given while `compute_loss` runs.

    Outside of it, as where the main process generates, the model computes whole rows.

    Args:
        model: a decoder or an encoder; its embedding and its attention are changed in place.
        mesh: of the processes that share the positions.
    """

    def __init__(self, model: Model, mesh: DeviceMesh) -> None:
        self.mesh, self.size, self.is_active = mesh, mesh.size(), False
        own = mesh.get_local_rank()
        self.pieces = own, 2 * self.size - 1 - own
        embedding: Any = model.embedding
        embedding.forward = partial(self._embed, embedding.forward)
        for module in model.modules():
            if isinstance(module, Attention):
                module.full_sequence = partial(self._attend, module, module.full_sequence)  # type: ignore[method-assign]
            elif isinstance(module, LatentAttention):
                module.forward = partial(self._attend_to_latents, module, module.forward)  # type: ignore[method-assign]

    def num_targets(self, objective: Objective, batch: Batch) -> int:
        """How many predictions of a batch this process makes."""
        return int((self._own(objective.inputs_and_targets(batch)[1]) != IGNORED).sum())

    def compute_loss(self, objective: Objective, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of this process's positions of whole rows; where nothing is predicted there, of some number."""

        def inputs_and_targets(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
            inputs, targets = objective.inputs_and_targets(batch)
            targets = self._own(targets)
            if not (targets != IGNORED).any():  # the mean of no losses is no number
                targets[0, 0] = 0
            return inputs, targets

        own, self.is_active = copy(objective), True
        own.inputs_and_targets = inputs_and_targets  # type: ignore[method-assign]
        try:
            return own.compute_loss(model, batch)
        finally:
            self.is_active = False

    def _own(self, x: Tensor) -> Tensor:
        """The positions of this process of whole rows: the second dimension."""
        pieces = x.chunk(2 * self.size, dim=1)
        return torch.cat([pieces[number] for number in self.pieces], dim=1)

    def _gather(self, x: Tensor) -> Tensor:
        """All positions, the third dimension, in their order, of what each process has of them."""
        shares = DTensor.from_local(x, self.mesh, [Shard(2)], run_check=False)
        gathered = shares.redistribute(self.mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        pieces = gathered.chunk(2 * self.size, dim=2)  # 0, 2 N - 1, 1, 2 N - 2, ...
        return torch.cat((*pieces[0::2], *reversed(pieces[1::2])), dim=2)

    def _embed(
        self, plain: Callable[..., Tensor], tokens: Tensor, context: ForwardContext, types: Tensor | None = None
    ) -> Tensor:
        """The vectors of this process's tokens, whose positions all layers then see."""
        if self.is_active:
            context.shared[WholeRows] = WholeRows(context.shared_positions, context.document_ids)
            tokens, context.positions = self._own(tokens), self._own(context.positions)
            types = None if types is None else self._own(types)
            context.document_ids = None if context.document_ids is None else self._own(context.document_ids)
        return plain(tokens, context, types)

    def _attend(
        self, attention: Attention, plain: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor,
        context: ForwardContext,
    ) -> Tensor:  # fmt: skip
        """Attention of this process's queries (B, H, T, P) to the keys and values of all positions."""
        if WholeRows not in context.shared:
            return plain(q, k, v, context)
        whole, pattern, bias = context.shared[WholeRows], attention.spec.pattern, attention.bias(context)
        k, v, outputs = self._gather(k), self._gather(v), []
        for number, queries, keys in self._places(k.shape[2], pattern, attention.causal):
            where = MaskContext(attention.causal, k.shape[2], attention.layer)
            mask = _allowed(whole, pattern, where, queries, keys, context, (attention.pairs_key, number))
            if bias is not None:
                mask = context.cached(
                    (attention.bias_key, number), partial(_biased, bias, whole.positions, queries, keys, mask)
                )
            rows = q.chunk(2, dim=2)[number]
            outputs.append(attend(rows, k[:, :, keys], v[:, :, keys], attention.score_function, mask))
        return torch.cat(outputs, dim=2)

    def _attend_to_latents(
        self, attention: LatentAttention, plain: Callable[..., Tensor], x: Tensor, context: ForwardContext,
        cache: LayerState | None = None,
    ) -> Tensor:  # fmt: skip
        """The output for this process's vectors (B, T, D): what is gathered are the latents, which are narrow."""
        if WholeRows not in context.shared:
            return plain(x, context, cache)
        (plain_part, turned), latents = attention._queries(x, context), attention._latents(x, context)
        latent, key = map(self._gather, latents)
        outputs = []
        for number, queries, keys in self._places(latent.shape[2], Full(), attention.causal):
            where = MaskContext(attention.causal, latent.shape[2], 0)
            mask = _allowed(context.shared[WholeRows], Full(), where, queries, keys, context, ("latents", number))
            own = plain_part.chunk(2, dim=2)[number], turned.chunk(2, dim=2)[number]
            outputs.append(attention.attend(own, (latent[:, :, keys], key[:, :, keys]), mask))
        heads = probe(attention, "heads", torch.cat(outputs, dim=2))
        y: Tensor = attention.o(heads.transpose(1, 2).flatten(2))
        return y

    def _places(self, length: int, pattern: Pattern, causal: bool) -> Iterator[tuple[int, slice, slice]]:
        """For each of this process's pieces its number, where its queries stand, and the keys that they may see."""
        size = length // (2 * self.size)
        for number, piece in enumerate(self.pieces):
            queries = slice(piece * size, (piece + 1) * size)
            first = max(0, queries.start + 1 - pattern_rule(pattern).cache_length(length))
            yield number, queries, slice(first, queries.stop) if causal else slice(0, length)


def _allowed(
    whole: WholeRows, pattern: Pattern, where: MaskContext, queries: slice, keys: slice, context: ForwardContext,
    key: Any,
) -> Tensor | None:  # fmt: skip
    """Which pairs are allowed, (1 or B, 1, T, S); None where all are."""
    if isinstance(pattern, Full) and not where.causal and whole.document_ids is None:
        return None

    def pairs() -> Tensor:
        allowed = allowed_pairs(pattern_rule(pattern), where, whole.positions[:, queries], whole.positions[:, keys])
        if whole.document_ids is None:
            return allowed
        ids = whole.document_ids
        return allowed & (ids[:, None, queries, None] == ids[:, None, None, keys])

    return context.cached(key, pairs)


def _biased(bias: nn.Module, positions: Tensor, queries: slice, keys: slice, allowed: Tensor | None) -> Tensor:
    """The position bias of scores, (1 or B, H, T, S), and minus infinity where a pair is not allowed."""
    scores: Tensor = bias(positions[:, queries], positions[:, keys])
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
