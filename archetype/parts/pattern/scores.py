"""Attention scores, their softmax, and masks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from archetype.nn.context import Lengths
from archetype.nn.symbolic import is_symbolic
from archetype.roles.pattern import MaskContext, PatternRule

EPSILON = 1e-8  # of softpick, for scores that are all zero (Zuhri 2025, equation 4)
MASKED = -1e30  # not -inf, as all keys of a query may be masked and inf - inf = NaN


@dataclass(frozen=True)
class ScoreFunction:
    """Score of a query and a key, and the softmax over keys.

    `additive`, (H, P), makes the score w^T tanh(q + k); `sinks`, (H,), are logits that take a share of the weights.
    `normalization` is the softmax: `standard`, `off_by_one` (a sink with the logit 0), or `softpick`.
    """

    scale: float
    softcap: float | None = None
    additive: Tensor | None = None
    dropout: float = 0.0
    sinks: Tensor | None = None
    normalization: str = "standard"

    @property
    def is_scaled_product(self) -> bool:
        """Whether scores are plain scaled dot products, which torch's fused kernel supports."""
        return (
            self.softcap is None and self.additive is None and self.sinks is None and self.normalization == "standard"
        )

    @property
    def has_softmax(self) -> bool:
        """Whether weights are proportional to exp(score), as native kernels require."""
        return self.normalization != "softpick"

    @property
    def without_dropout(self) -> "ScoreFunction":
        return replace(self, dropout=0.0)

    def scores(self, q: Float[Tensor, "B H T P"], k: Float[Tensor, "B K S P"]) -> Float[Tensor, "B H T S"]:
        """Return all scores, in at least float32. The G query heads per key head form one product: no key is copied."""
        if self.additive is not None:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            sums = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B, H, T, S, P)
            additive = self.additive.to(sums.dtype)
            if is_symbolic(q.shape[2]):  # einsum would compare symbolic strides
                return at_least_float32((sums * additive[:, None, None]).sum(-1))
            return at_least_float32(torch.einsum("bhtsp,hp->bhts", sums, additive))
        grouped = q.reshape(*k.shape[:2], -1, q.shape[3])  # (B, K, G T, P)
        scores = at_least_float32(grouped @ k.transpose(2, 3)) * self.scale
        return self.apply_softcap(scores.view(*q.shape[:3], k.shape[2]))

    def softmax(self, scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
        """Return the attention weights of the keys. Masked scores are `MASKED`."""
        if self.has_softmax:
            return self.shares(scores)
        weights, total, _ = self.exponentials(scores)
        return weights / total

    def shares(self, scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
        """Return the softmax of scores, or of log-sum-exps, less the share of sinks (Xiao 2023; gpt-oss)."""
        if self.sinks is None and self.normalization != "off_by_one":
            return scores.softmax(-1)
        logits = scores.new_zeros(1) if self.sinks is None else self.sinks.to(scores.dtype)
        sinks = logits.view(-1, 1, 1).expand(*scores.shape[:-1], 1)  # (B, H, T, 1)
        # the weights of a query then add up to less than 1
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]

    def exponentials(self, scores: Float[Tensor, "... S"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights (..., S), their divisor (..., 1), and the logarithm of a factor that both omit."""
        peak = scores.detach().amax(-1, keepdim=True)
        if self.has_softmax:
            weights = (scores - peak).exp()
            return weights, weights.sum(-1, keepdim=True), peak
        peak = peak.clamp(min=0.0)  # exp(-peak) must not overflow
        steps = ((scores - peak).exp() - (-peak).exp()).masked_fill(scores <= MASKED, 0.0)
        return steps.relu(), steps.abs().sum(-1, keepdim=True) + EPSILON, peak

    def native_sinks(self, heads: int) -> Float[Tensor, " H"] | None:
        """Return the sink logits for native kernels, which support no other normalization."""
        return torch.zeros(heads) if self.normalization == "off_by_one" else self.sinks

    def apply_softcap(self, scores: Tensor) -> Tensor:
        """Return c tanh(s / c) with c = `softcap` (Gemma 2)."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def of_symbolic_length(q: Float[Tensor, "B H T P"], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return keys and values, repeated for each query head if the number of queries is symbolic."""
    if not is_symbolic(q.shape[2]):
        return tensors
    # heads cannot be grouped for a symbolic length; by index, since the view that repeats them has strides which torch
    # cannot compare for symbolic lengths
    heads = torch.arange(q.shape[1], device=q.device) // (q.shape[1] // tensors[0].shape[1])
    return tuple(x.index_select(1, heads) for x in tensors)


def at_least_float32(scores: Tensor) -> Tensor:
    """Cast scores to float32; keep float64."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def causal_pairs(queries: Int[Tensor, "B T"], keys: Int[Tensor, "b S"]) -> Bool[Tensor, "B 1 T S"]:
    """Return True where the query at position i may see the key at position j: j <= i.

    Empty cache slots have positions beyond any query, so that the same rule masks them.
    """
    return (keys[:, None, :] <= queries[:, :, None])[:, None]


def near_pairs(queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"], window: int) -> Bool[Tensor, "b3 1 T S"]:
    """Return True for keys among the latest `window` positions up to the query. Empty slots come after the query."""
    distance = queries[:, :, None] - keys[:, None]  # (b, T, S)
    return ((distance >= 0) & (distance < window))[:, None]


def allowed_pairs(
    rule: PatternRule[Any], context: MaskContext, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]
) -> Bool[Tensor, "b3 1 T S"]:
    """Return True where the rule of a pattern lets the query at position i see the key at position j."""
    return rule.allows(queries[:, None, :, None], keys[:, None, None, :], context)


def present_keys(num_tokens: Lengths, keys: Int[Tensor, "S"]) -> Bool[Tensor, "B 1 1 S"]:
    """Return True where a key is not padding, for sequences that start at position 0."""
    return (keys < num_tokens[:, None])[:, None, None]
