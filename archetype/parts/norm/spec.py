"""Normalization of vectors before or after the sublayers of a block."""

from typing import ClassVar, Literal, TypeVar

from pydantic import model_validator

from archetype.roles.norm import Norm
from archetype.spec.base import Flag, Positive, Probability
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

Scaled = TypeVar("Scaled", "LayerNorm", "RMSNorm")


@part
class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba 2016).

    Without `weight` the factor is 1 (OLMo); `unit_offset` multiplies by 1 + weight (Nemotron).

    Attributes:
        eps: epsilon added to the variance.
        bias: whether there is a learned bias vector.
        weight: whether there is a learned weight vector.
        unit_offset: whether the factor is 1 + weight.
    """

    title: ClassVar[str] = "LayerNorm"
    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: Flag = True
    weight: Flag = True
    unit_offset: Flag = False

    @model_validator(mode="after")
    def _offset_has_a_weight(self) -> "LayerNorm":
        return _offset_of_a_weight(self)


@part
class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019).

    Without `weight` the factor is 1 (nanochat); `unit_offset` multiplies by 1 + weight (Gemma).

    Attributes:
        eps: epsilon added to the mean square.
        weight: whether there is a learned weight vector.
        unit_offset: whether the factor is 1 + weight.
    """

    title: ClassVar[str] = "RMSNorm"
    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-5
    weight: Flag = True
    unit_offset: Flag = False

    @model_validator(mode="after")
    def _offset_has_a_weight(self) -> "RMSNorm":
        return _offset_of_a_weight(self)


@part
class GatedRMSNorm(Norm):
    """y * sigmoid(W_up silu(W_down y)) with y = x / sqrt(mean(x^2) + eps) * weight: a low-rank gate (A.X K2).

    Attributes:
        eps: epsilon added to the mean square.
        rank: rank of the gate.
    """

    title: ClassVar[str] = "Gated RMSNorm"
    serves_inside: ClassVar[bool] = False
    kind: Literal["gated_rms"] = "gated_rms"
    eps: Positive = 1e-5
    rank: Width = 16


@part
class L2Norm(Norm):
    """x / sqrt(sum(x^2) + eps): scale to unit length (nGPT, Loshchilov 2024).

    Attributes:
        eps: epsilon added to the squared length.
    """

    title: ClassVar[str] = "L2 norm"
    kind: Literal["l2"] = "l2"
    eps: Positive = 1e-6


@part
class Affine(Norm):
    """(x + bias) * weight: learned shift and factor of each feature, without statistics (ZAYA1).

    Attributes:
        bias: whether there is a learned shift.
    """

    title: ClassVar[str] = "Factors"
    kind: Literal["affine"] = "affine"
    bias: Flag = True


class _Pointwise(Norm):
    """Base class of elementwise bounded functions that replace a norm.

    Attributes:
        alpha: initial value of the learned scalar.
    """

    has_shift: ClassVar[bool] = False  # learned, and added before the function
    alpha: Positive = 0.5


@part
class DynamicTanh(_Pointwise):
    """tanh(alpha x) * weight + bias with a learned scalar alpha, without statistics (Zhu 2025)."""

    title: ClassVar[str] = "Dynamic tanh"
    kind: Literal["dynamic_tanh"] = "dynamic_tanh"


@part
class DynamicErf(_Pointwise):
    """erf(alpha x + shift) * weight + bias with learned scalars alpha and shift (Chen 2025, Derf)."""

    title: ClassVar[str] = "Dynamic erf"
    has_shift: ClassVar[bool] = True
    kind: Literal["dynamic_erf"] = "dynamic_erf"


@part
class BatchNorm(Norm):
    """Normalization of each feature over the batch's positions, excluding padding (Ioffe 2015).

    Training uses the batch's mean and variance and updates running statistics, in which the newest batch has the weight
    `momentum`; evaluation uses the running statistics.

    Attributes:
        eps: epsilon added to the variance.
        momentum: weight of the newest batch in the running statistics.
    """

    title: ClassVar[str] = "BatchNorm"
    serves_inside: ClassVar[bool] = False
    kind: Literal["batch"] = "batch"
    eps: Positive = 1e-5
    momentum: Probability = 0.1


@part
class NoNorm(Norm):
    """Identity: no normalization."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"


def _offset_of_a_weight(norm: Scaled) -> Scaled:
    if norm.unit_offset and not norm.weight:
        invalid("unit_offset", "needs a weight", "remove it, or use weight: true")
    return norm
