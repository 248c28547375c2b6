"""What was proved of a start: how far the new model is from its donor on the tokens of a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archetype.models.build import GenerativeModel
from archetype.models.stack.module import Stack
from archetype.nn.transplant import Start

# Largest difference of two logits, relative to their standard deviation, that counts as rounding. In narrower types
# also the changed weights are rounded.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.25}


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


@torch.inference_mode()
def compare(donor: GenerativeModel, model: GenerativeModel, rows: Sequence[Tensor], origins: Sequence[int]) -> Proof:
    """Compare both models on rows of token ids, (1, T) each."""
    same, difference, square, agree, nats, losses, count, predicted = True, 0.0, 0.0, 0, 0.0, [0.0, 0.0], 0, 0
    distances = [[0.0, 0.0] for _ in origins]
    for tokens in rows:
        before, streams_before = _run(donor, tokens)
        after, streams_after = _run(model, tokens)
        vocabulary = min(before.shape[-1], after.shape[-1])  # tokens that both have
        before, after = before[..., :vocabulary], after[..., :vocabulary]
        same &= torch.equal(before, after)
        x, y = before.double(), after.double()
        difference = max(difference, float((x - y).abs().max()))
        square += float(x.var()) * tokens.numel()
        count += tokens.numel()
        agree += int((x.argmax(-1) == y.argmax(-1)).sum())
        p, q = x.log_softmax(-1), y.log_softmax(-1)
        nats += float((p.exp() * (p - q)).sum())
        for index, logits in enumerate((p, q)):
            losses[index] += float(-logits[:, :-1].gather(-1, tokens[:, 1:, None]).sum())
        predicted += tokens.shape[1] - 1
        for layer, origin in enumerate(origins):
            if layer < len(streams_after) and origin < len(streams_before):
                _add(distances[layer], streams_before[origin], streams_after[layer])
    relative = difference / max(math.sqrt(square / count), 1e-30)
    start = Start.SAME if same else Start.ROUNDED if relative < ROUNDING[model.dtype] else Start.CHANGED
    return Proof(
        count, start, relative, nats / count, agree / count, losses[0] / predicted, losses[1] / predicted,
        tuple(
            LayerDistance(layer, origin, math.sqrt(apart / whole) if whole else 0.0)
            for layer, (origin, (apart, whole)) in enumerate(zip(origins, distances, strict=True))
        ),
    )  # fmt: skip


@torch.inference_mode()
def loss_of(model: GenerativeModel, rows: Sequence[Tensor]) -> float:
    """Return the summed cross-entropy of all tokens that have one before them in their row, in nats."""
    losses = 0.0
    for tokens in rows:
        logits = model(tokens).logits[:, :-1].double()
        losses += float(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[0, 1:], reduction="sum"))
    return losses


def _run(model: GenerativeModel, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    # logits (1, T, V), and the residual stream after each layer
    if not isinstance(model, Stack):
        return model(tokens).logits, []
    with model.recording(range(1, len(model.blocks) + 1)) as streams:
        return model(tokens).logits, list(streams.values())


def _add(sums: list[float], before: Tensor, after: Tensor) -> None:
    before, after = (
        nn.functional.pad(x, (0, max(before.shape[-1], after.shape[-1]) - x.shape[-1])) for x in (before, after)
    )
    if before.shape == after.shape:
        sums[0] += float((after.double() - before.double()).square().sum())
        sums[1] += float(before.double().square().sum())
