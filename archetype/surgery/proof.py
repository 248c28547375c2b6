"""What was proved of a start: how far the new model is from its donor on the tokens of a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archetype.generate.finite import check_finite
from archetype.models.build import GenerativeModel
from archetype.models.stack.module import Stack
from archetype.nn.ledger import Start

# Largest difference of two logits, relative to their standard deviation, that counts as rounding. Where weights were
# multiplied (folded gains), models of random weights that are equal in float64 differed in bfloat16 by 0.05 with 2
# layers, 0.06 with 8 and 0.09 with 32, in float16 by an eighth of it, and in float32 by 4e-6: about 3 to 7 u sqrt(2 L)
# of a type with unit roundoff u, since each of 2 L sums of the stream is rounded. The bounds of narrow types are 64 u,
# three times that of 32 layers; smaller changes are not told from rounding there. The others leave room for layers
# that amplify differences.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.25}
POSITIONS = 64  # compared at once


@dataclass(frozen=True)
class LayerDistance:
    """Distance of a layer's output from that of the donor's layer, relative to the donor's: |y' - y| / |y|."""

    layer: int
    origin: int
    distance: float


@dataclass(frozen=True)
class Proof:
    """Comparison of two models on the same tokens.

    Attributes:
        num_tokens: number of compared positions.
        start: the same bits, the same up to rounding, or changed.
        difference: largest difference of a logit, relative to the standard deviation of the donor's logits.
        divergence: mean KL divergence of the donor's next-token distribution from the new one, in nats per token.
        agreement: fraction of positions with the same most likely token.
        loss_before: cross-entropy of the donor, in nats per token.
        loss_after: cross-entropy of the new model.
        layers: distance by layer, for one stack of layers.
    """

    num_tokens: int
    start: Start
    difference: float
    divergence: float
    agreement: float
    loss_before: float
    loss_after: float
    layers: tuple[LayerDistance, ...]


@dataclass(frozen=True)
class Outputs:
    """What a model computes from a row of tokens.

    Attributes:
        logits: (1, T, V).
        streams: residual stream after each layer, (1, T, D); empty for models without a single stack of layers.
    """

    logits: Tensor
    streams: list[Tensor]


@torch.inference_mode()
def outputs(model: GenerativeModel, tokens: Tensor) -> Outputs:
    """Run a model on a row of token ids, (1, T).

    Raises:
        CheckpointError: a logit is NaN or infinite.
    """
    tokens = tokens.to(model.device)
    if isinstance(model, Stack):
        with model.recording(range(1, len(model.blocks) + 1)) as streams:
            logits = model(tokens).logits
    else:
        logits, streams = model(tokens).logits, {}
    check_finite(logits, model, lambda: model(tokens))
    return Outputs(logits, list(streams.values()))


class Comparison:
    """Comparison of two models, row by row.

    Args:
        dtype: type of the new model's weights.
        origins: the donor's layer of each layer of the new model.
    """

    def __init__(self, dtype: torch.dtype, origins: Sequence[int]) -> None:
        self._rounding, self._origins = ROUNDING[dtype], origins
        self._is_same, self._difference, self._square = True, 0.0, 0.0
        self._agree, self._nats, self._losses, self._count, self._predicted = 0, 0.0, [0.0, 0.0], 0, 0
        self._distances = [[0.0, 0.0] for _ in origins]

    @torch.inference_mode()
    def add(self, tokens: Tensor, before: Outputs, after: Outputs) -> Tensor:
        """Add the outputs of both models for a row of token ids, (1, T).

        Returns the KL divergence at each position, (T,), in nats.
        """
        vocabulary = min(before.logits.shape[-1], after.logits.shape[-1])  # tokens that both have
        logits = [output.logits[0, :, :vocabulary] for output in (before, after)]
        targets = tokens[0, 1:].to(logits[0].device)
        self._dtype = after.logits.dtype
        self._is_same &= torch.equal(*logits)
        divergences = []
        for at in range(0, len(logits[0]), POSITIONS):  # a large vocabulary in float64 takes 1 MB a position
            x, y = (rows[at : at + POSITIONS].double() for rows in logits)
            self._difference = max(self._difference, float((x - y).abs().max()))
            self._square += float(x.var()) * len(x)
            self._agree += int((x.argmax(-1) == y.argmax(-1)).sum())
            p, q = x.log_softmax(-1), y.log_softmax(-1)
            divergences.append((p.exp() * (p - q)).sum(-1))
            following = targets[at : at + POSITIONS, None]
            for index, distribution in enumerate((p, q)):
                self._losses[index] -= float(distribution[: len(following)].gather(-1, following).sum())
        self._count += tokens.numel()
        self._predicted += len(targets)
        for distance, layer, origin in zip(self._distances, range(len(self._origins)), self._origins, strict=True):
            if layer < len(after.streams) and origin < len(before.streams):
                _add(distance, before.streams[origin], after.streams[layer])
        divergence = torch.cat(divergences)
        self._nats += float(divergence.sum())
        return divergence

    def proof(self) -> Proof:
        """Return the comparison over all rows."""
        relative = self._difference / max(math.sqrt(self._square / self._count), 1e-30)
        start = Start.SAME if self._is_same else Start.ROUNDED if relative < self._rounding else Start.CHANGED
        before, after = (loss / self._predicted for loss in self._losses)
        return Proof(
            self._count, start, relative, self._nats / self._count, self._agree / self._count, before, after,
            tuple(
                LayerDistance(layer, origin, math.sqrt(apart / whole) if whole else 0.0)
                for layer, (origin, (apart, whole)) in enumerate(zip(self._origins, self._distances, strict=True))
            ),
        )  # fmt: skip


def compare(donor: GenerativeModel, model: GenerativeModel, rows: Sequence[Tensor], origins: Sequence[int]) -> Proof:
    """Compare both models on rows of token ids, (1, T) each."""
    comparison = Comparison(model.dtype, origins)
    for tokens in rows:
        comparison.add(tokens, outputs(donor, tokens), outputs(model, tokens))
    return comparison.proof()


@torch.inference_mode()
def loss_of(model: GenerativeModel, rows: Sequence[Tensor]) -> float:
    """Return the summed cross-entropy of all tokens that have one before them in their row, in nats."""
    losses = 0.0
    for row in rows:
        tokens = row.to(model.device)
        logits = model(tokens).logits[:, :-1].double()
        losses += float(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[0, 1:], reduction="sum"))
    return losses


def _add(sums: list[float], before: Tensor, after: Tensor) -> None:
    before, after = (
        nn.functional.pad(x, (0, max(before.shape[-1], after.shape[-1]) - x.shape[-1])) for x in (before, after)
    )
    if before.shape == after.shape:
        sums[0] += float((after.double() - before.double()).square().sum())
        sums[1] += float(before.double().square().sum())
