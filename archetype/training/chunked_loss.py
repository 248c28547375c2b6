"""Chunked losses over a large vocabulary: the logits of only one chunk of tokens exist at a time.

The gradients of the head are computed together with the loss, so that no logits are computed twice (Hsu 2024).
Positions without a target, such as padding or tokens that are not masked, are dropped first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.data.labelled_words import NO_CLASS
from archetype.parts.head.module import LanguageModelHead
from archetype.weights.linear import linear
from archetype.weights.packed import Weight

# From float32 logits (n, V), which it may overwrite, and the tokens that they belong to: the loss of each token (n,) in
# nats, and the gradient of their sum (n, V).
LossOfLogits = Callable[[Tensor, slice], tuple[Tensor, Tensor]]

IGNORED = NO_CLASS  # target of tokens without a prediction
CHUNK_BYTES, MIN_ROWS = 2**25, 256  # per chunk of logits; with fewer rows, adding to the weight gradient dominates


class Head(NamedTuple):
    """Weight and bias of a language-model head, and the soft cap of its logits."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, "V"] | None
    softcap: float | None

    @classmethod
    def of(cls, head: LanguageModelHead, embedding: Weight) -> Self:
        """Return the tensors of a head module. A tied head uses the embedding matrix."""
        weight = head.matrix(embedding)
        assert isinstance(weight, Tensor), "matrices of few bits are not trained"
        if head.gain is not None:  # the factor of a logit is one of its row
            weight = weight * head.gain.factors().to(weight.dtype)[:, None]
        return cls(weight, head.bias, head.spec.softcap)


def chunk_rows(vocab_size: int) -> int:
    # 4 bytes: logits are float32
    return max(MIN_ROWS, CHUNK_BYTES // (4 * vocab_size))


def chunked_cross_entropy(
    features: Float[Tensor, "... D"],
    head: Head,
    targets: Int[Tensor, "..."],
    label_smoothing: float,
    num_targets: int | None = None,
    weights: Float[Tensor, "..."] | None = None,
) -> tuple[Tensor, int, int | None]:
    """Return the mean cross-entropy in nats, the number of targets, and the number correct (None if gradients are on).

    Args:
        features: inputs of the head.
        targets: token ids, or IGNORED.
        label_smoothing: probability mass spread evenly over all V ids.
        num_targets: number of targets that are not IGNORED, if counted on the host (default: read from the device).
        weights: factor of each target's loss (absent: 1). The sum is divided by the number of targets.
    """
    targets = targets.flatten()
    num_targets, selected = predicted(targets, num_targets)
    x, targets = of_predicted(features.flatten(0, -2), selected), of_predicted(targets, selected)
    weights = None if weights is None else of_predicted(weights.flatten().float(), selected)
    if torch.is_grad_enabled():

        def loss_of(logits: Tensor, part: slice) -> tuple[Tensor, Tensor]:
            return cross_entropy_and_gradient(logits, targets[part, None], label_smoothing)

        return chunked_loss(x, head, loss_of, weights), num_targets, None
    device = x.device.type
    nats, num_correct, dtype = torch.zeros((), device=x.device), 0, _compute_dtype(x)
    weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
    with torch.autocast(device, enabled=False):
        for start in range(0, num_targets, chunk_size := chunk_rows(len(weight))):
            logits, _ = _logits(x[start : start + chunk_size].to(dtype), weight, bias, head.softcap)
            chunk = targets[start : start + chunk_size]
            of_tokens = nn.functional.cross_entropy(logits, chunk, label_smoothing=label_smoothing, reduction="none")
            nats += _total(of_tokens, weights, slice(start, start + chunk_size))
            num_correct += int((logits.argmax(-1) == chunk).sum())
    return nats / num_targets, num_targets, num_correct


def chunked_loss(
    x: Float[Tensor, "N D"], head: Head, loss_of: LossOfLogits, weights: Float[Tensor, "N"] | None = None
) -> Tensor:
    """Return the mean of a loss of each token's logits. The gradient is computed with it, chunk by chunk."""
    return _ChunkedLoss.apply(x, head.weight, head.bias, weights, head.softcap, loss_of)  # type: ignore[no-untyped-call]


def predicted(targets: Int[Tensor, "N"], num_targets: int | None) -> tuple[int, Int[Tensor, "n"] | None]:
    """Return the number of targets that are not IGNORED, and their indices (None: all)."""
    is_target = targets != IGNORED
    num_targets = int(is_target.sum()) if num_targets is None else num_targets
    return num_targets, indices_where(is_target, num_targets) if num_targets < len(targets) else None


def of_predicted(x: Tensor, selected: Int[Tensor, "n"] | None) -> Tensor:
    """Return the rows of x at the indices that `predicted` returned."""
    return x if selected is None else x.index_select(0, selected)


def _total(nats: Float[Tensor, "n"], weights: Float[Tensor, "N"] | None, part: slice) -> Float[Tensor, ""]:
    return nats.sum() if weights is None else nats @ weights[part]


def indices_where(mask: Bool[Tensor, "N"], count: int) -> Int[Tensor, "count"]:
    """Return the indices of the `count` true elements in order."""
    # `mask.nonzero()` would read their number from the device, which waits for all work queued there
    return mask.argsort(descending=True, stable=True)[:count]


def _compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    # float32 logits (n, V), and the tanh of the soft cap, which its derivative needs
    logits = linear(x, weight, bias)
    if softcap is None:
        return logits.float(), None
    tanh = logits.div_(softcap).tanh_()
    return (softcap * tanh).float(), tanh


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, "V"] | None,
        weights: Float[Tensor, "N"] | None,
        softcap: float | None,
        loss_of: LossOfLogits,
    ) -> Tensor:
        dtype, num_tokens, vocab_size = _compute_dtype(x), len(x), len(weight)
        w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        # the forward pass computes the gradients too, while a chunk's logits exist; `backward` only scales them
        ctx.x_gradient = torch.empty_like(x) if of_x else None
        ctx.weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None
        ctx.bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if of_bias and bias is not None else None
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        nats = torch.zeros((), device=x.device)
        # w, b and the chunk have the type of autocast already
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, num_tokens, chunk_size := chunk_rows(vocab_size)):
                part = slice(start, start + chunk_size)
                chunk = x[part].to(dtype)
                logits, tanh = _logits(chunk, w, b, softcap)
                nats_of_chunk, g = loss_of(logits, part)
                del logits
                if tanh is not None:  # the derivative of the soft cap
                    g.mul_(1 - tanh.float().square_())
                g = g.to(dtype)
                nats = nats + _total(nats_of_chunk, weights, part)
                g = g.div_(num_tokens) if weights is None else g.mul_(weights[part, None] / num_tokens)
                if ctx.x_gradient is not None:
                    ctx.x_gradient[part] = linear(g, w.T)
                if ctx.weight_gradient is not None:
                    _add_product(ctx.weight_gradient, g.T, chunk)
                if ctx.bias_gradient is not None:
                    ctx.bias_gradient += g.float().sum(0)
                del g  # freed before the next chunk allocates its own
        return nats / num_tokens

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # dropped from the context, so that the scaled gradients are the only references
        results = ctx.x_gradient, ctx.weight_gradient, ctx.bias_gradient
        ctx.x_gradient = ctx.weight_gradient = ctx.bias_gradient = None
        x, weight, bias = (None if result is None else result.mul_(gradient) for result in results)
        weight_dtype, bias_dtype = ctx.dtypes
        weight = None if weight is None else weight.to(weight_dtype)
        return x, weight, None if bias is None else bias.to(bias_dtype), None, None, None


def cross_entropy_and_gradient(
    z: Float[Tensor, "n V"], ids: Int[Tensor, "n 1"], label_smoothing: float
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n V"]]:
    """Return the cross-entropy of each token in nats, and the gradient of their sum, in the memory of the logits z."""
    z.sub_(z.amax(-1, keepdim=True))  # the largest is 0, so exp cannot overflow
    of_target, mean = z.gather(1, ids), z.mean(-1, keepdim=True)  # (n, 1)
    total = z.exp_().sum(-1, keepdim=True)
    nats = (total.log() - (1 - label_smoothing) * of_target - label_smoothing * mean)[:, 0]
    gradient = z.div_(total).sub_(label_smoothing / z.shape[1])  # softmax minus the smoothed target
    # the target has the rest of the probability, 1 - label_smoothing
    gradient.scatter_add_(1, ids, torch.full_like(of_target, label_smoothing - 1))
    return nats, gradient


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
