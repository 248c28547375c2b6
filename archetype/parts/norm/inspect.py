"""Linearize norms at one vector (with fixed statistics), so a logit is a sum over parts."""

import torch
from torch import Tensor

from archetype.nn.inspect import FrozenNorm, Shown
from archetype.parts.norm import module, spec
from archetype.spec.registry import provides


def _rms(norm: module.RMSNorm, x: Tensor) -> FrozenNorm:
    scale = torch.rsqrt(x.double().square().mean() + norm.eps) * _weight(norm)
    return FrozenNorm(lambda y: y * scale, _zero(x))


def _gated_rms(norm: module.GatedRMSNorm, x: Tensor) -> FrozenNorm:
    scale = torch.rsqrt(x.double().square().mean() + norm.eps) * _weight(norm)
    gate = norm.gate((x.double() * scale).to(norm.gate_down.weight.dtype)).double()
    return FrozenNorm(lambda y: y * scale * gate, _zero(x))


def _length(norm: module.L2Norm, x: Tensor) -> FrozenNorm:
    scale = torch.rsqrt(x.double().square().sum() + norm.eps)
    return FrozenNorm(lambda y: y * scale, _zero(x))


def _affine(norm: module.Affine, x: Tensor) -> FrozenNorm:
    weight = norm.weight.double()
    return FrozenNorm(lambda y: y * weight, _zero(x) if norm.bias is None else norm.bias.double() * weight)


def _layer(norm: module.LayerNorm, x: Tensor) -> FrozenNorm:
    scale = torch.rsqrt(x.double().var(correction=0) + norm.eps) * _weight(norm)
    return FrozenNorm(lambda y: (y - y.mean()) * scale, _zero(x) if norm.bias is None else norm.bias.double())


def _pointwise(norm: module.Pointwise, x: Tensor) -> FrozenNorm:
    # each feature has its own slope from the output of 0 to its output
    alpha, weight = norm.alpha.double(), norm.weight.double()
    shift = torch.zeros_like(alpha) if norm.shift is None else norm.shift.double()
    f = torch.tanh if norm.shift is None else torch.erf
    inputs = torch.where(x == 0, 1e-9, x.double())
    slope = (f(alpha * inputs + shift) - f(shift)) / inputs * weight
    return FrozenNorm(lambda y: y * slope, f(shift) * weight + norm.bias.double())


def _batch(norm: module.BatchNorm, x: Tensor) -> FrozenNorm:
    scale = torch.rsqrt(norm.running_var.double() + norm.spec.eps) * norm.weight.double()
    return FrozenNorm(lambda y: y * scale, norm.bias.double() - norm.running_mean.double() * scale)


def _weight(norm: module.RMSNorm | module.LayerNorm) -> Tensor | float:
    if norm.weight is None:
        return 1.0
    weight = norm.weight.double()
    return 1 + weight if norm.unit_offset else weight


def _zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.float64)


provides("inspect", spec.NoNorm)(Shown(frozen=lambda norm, x: FrozenNorm(lambda y: y, _zero(x))))
provides("inspect", spec.RMSNorm)(Shown(frozen=_rms))
provides("inspect", spec.GatedRMSNorm)(Shown(frozen=_gated_rms))
provides("inspect", spec.L2Norm)(Shown(frozen=_length))
provides("inspect", spec.Affine)(Shown(frozen=_affine))
provides("inspect", spec.LayerNorm)(Shown(frozen=_layer))
provides("inspect", spec.DynamicTanh, spec.DynamicErf)(Shown(frozen=_pointwise))
provides("inspect", spec.BatchNorm)(Shown(frozen=_batch))
