"""Normalization of the last axis, with statistics in float32.

All norms take the vectors and the context, which only BatchNorm reads.
"""

from contextlib import nullcontext
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.native import fused
from archetype.nn.autocast import cast_for_products, dtype_of_products, without_autocast
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.registry import module_for
from archetype.parts.norm import spec


class _WeightedNorm(nn.Module):
    # base class of norms with a weight of each feature

    def __init__(self, norm: spec.LayerNorm | spec.RMSNorm, d_model: int) -> None:
        super().__init__()
        self.eps, self.unit_offset = norm.eps, norm.unit_offset
        self.initial_values = {"weight": 0.0 if norm.unit_offset else 1.0}
        self.weight = nn.Parameter(torch.empty(d_model)) if norm.weight else None


@module_for(spec.LayerNorm)
class LayerNorm(_WeightedNorm):
    """(x - mean) / sqrt(variance + eps) * weight + bias with biased variance (Ba 2016); or * (1 + weight)."""

    def __init__(self, norm: spec.LayerNorm, d_model: int) -> None:
        super().__init__(norm, d_model)
        self.bias = nn.Parameter(torch.empty(d_model)) if norm.bias else None

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        weight = 1 + self.weight if self.unit_offset and self.weight is not None else self.weight
        if weight is None and self.bias is not None:  # torch needs x and bias of the same type
            x = x.to(torch.promote_types(x.dtype, self.bias.dtype))
        return cast_for_products(nn.functional.layer_norm(x, x.shape[-1:], weight, self.bias, self.eps))


@module_for(spec.RMSNorm)
class RMSNorm(_WeightedNorm):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019, equation 4), or * (1 + weight) with a unit offset (Gemma)."""

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        if self.weight is None:
            return cast_for_products(nn.functional.rms_norm(x, x.shape[-1:], None, self.eps))
        weight = 1 + self.weight if self.unit_offset else self.weight
        x = x.to(torch.promote_types(x.dtype, weight.dtype))  # autocast may have cast x to a narrower type
        y = fused.rms_norm(x, weight, self.eps, dtype_of_products(x))
        return cast_for_products(nn.functional.rms_norm(x, weight.shape, weight, self.eps)) if y is None else y


@module_for(spec.GatedRMSNorm)
class GatedRMSNorm(RMSNorm):
    """y * sigmoid(W_up silu(W_down y)) for y = RMSNorm(x)."""

    def __init__(self, norm: spec.GatedRMSNorm, d_model: int) -> None:
        super().__init__(spec.RMSNorm(eps=norm.eps), d_model)
        self.gate_down = nn.Linear(d_model, norm.rank, bias=False)
        self.gate_up = nn.Linear(norm.rank, d_model, bias=False)

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        y = super().forward(x, context)
        return y * self.gate(y).to(y.dtype)

    def gate(self, y: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Return the factor of each feature, between 0 and 1, from the normalized vector."""
        return torch.sigmoid(self.gate_up(nn.functional.silu(self.gate_down(y))))


@module_for(spec.L2Norm)
class L2Norm(nn.Module):
    """x / sqrt(sum(x^2) + eps), as an RMS norm divided by sqrt(D)."""

    def __init__(self, norm: spec.L2Norm, d_model: int) -> None:
        super().__init__()
        self.eps = norm.eps

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        features = x.shape[-1]
        return cast_for_products(nn.functional.rms_norm(x, (features,), None, self.eps / features) * features**-0.5)


@module_for(spec.Affine)
class Affine(nn.Module):
    """(x + bias) * weight."""

    def __init__(self, norm: spec.Affine, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model)) if norm.bias else None

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        x = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        return cast_for_products((x if self.bias is None else x + self.bias) * self.weight)


@module_for(spec.DynamicTanh, spec.DynamicErf)
class Pointwise(nn.Module):
    """tanh(alpha x) * weight + bias (Zhu 2025), or erf(alpha x + shift) * weight + bias (Chen 2025)."""

    def __init__(self, norm: spec.DynamicTanh | spec.DynamicErf, d_model: int) -> None:
        super().__init__()
        self.initial_values = {"alpha": norm.alpha, "shift": 0.0}
        self.alpha = nn.Parameter(torch.empty(1))
        self.shift = nn.Parameter(torch.empty(1)) if norm.has_shift else None
        self.weight, self.bias = nn.Parameter(torch.empty(d_model)), nn.Parameter(torch.empty(d_model))

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        scaled = self.alpha * x.to(torch.promote_types(x.dtype, self.alpha.dtype))
        y = torch.tanh(scaled) if self.shift is None else torch.erf(scaled + self.shift)
        return cast_for_products(y * self.weight + self.bias)


def normalize_stream(norm: nn.Module, x: Vectors, context: ForwardContext | None = None) -> Vectors:
    """Apply a norm whose output is the residual stream without autocast, to keep the stream's dtype."""
    autocast = nullcontext() if dtype_of_products(x) == x.dtype else without_autocast(x)
    with autocast:
        y: Vectors = norm(x, context)
    return y


@module_for(spec.BatchNorm)
class BatchNorm(nn.Module):
    """Normalize each feature by its statistics over a batch's positions without padding (Ioffe 2015)."""

    initial_values: ClassVar = {"running_mean": 0.0}
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: spec.BatchNorm, d_model: int) -> None:
        super().__init__()
        self.spec = norm
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.register_buffer("running_mean", torch.empty(d_model))
        self.register_buffer("running_var", torch.empty(d_model))

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        vectors = x.flatten(0, -2)  # (N, D): all positions of the batch
        if self.training and context is not None and context.valid is not None:
            # read from the device: the number of vectors without padding is a shape here. Sums over all vectors, with
            # zeros for the padding, would need no read, but would round differently.
            vectors = vectors[context.valid.flatten()]
        if not self.training or vectors.shape[0] < 2:  # one vector has no variance
            mean, var = self.running_mean, self.running_var
        else:
            mean, var = self._observe(vectors.float())
        y = (x.float() - mean) * torch.rsqrt(var + self.spec.eps)  # (..., D)
        return (y * self.weight + self.bias).to(x.dtype)

    def _observe(self, vectors: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        # the running variance is updated with the unbiased estimate
        mean, var = vectors.mean(0), vectors.var(0, correction=0)  # (D) each
        with torch.no_grad():
            n = vectors.shape[0]
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.spec.momentum)
            self.running_var.lerp_((var * n / (n - 1)).to(self.running_var.dtype), self.spec.momentum)
        return mean, var


@module_for(spec.NoNorm)
class NoNorm(nn.Module):
    """Identity."""

    def __init__(self, norm: spec.NoNorm, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext | None = None) -> Float[Tensor, "... D"]:
        return x
