"""Normalization: what is done to a vector of `d_model` features before or after a block's contents."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from archetype.spec.base import Flag, Positive, Probability, Spec, invalid

Scaled = TypeVar("Scaled", "LayerNorm", "RMSNorm")


class LayerNorm(Spec):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba 2016).

    Without a `weight` it is 1 (OLMo); `unit_offset` multiplies by 1 + weight (Nemotron).
    """

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: Flag = True
    weight: Flag = True
    unit_offset: Flag = False

    @model_validator(mode="after")
    def _offset_has_a_weight(self) -> "LayerNorm":
        return _offset_of_a_weight(self)


class RMSNorm(Spec):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019).

    Without a `weight` it is 1 (nanochat); `unit_offset` multiplies by 1 + weight (Gemma).
    """

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-5
    weight: Flag = True
    unit_offset: Flag = False

    @model_validator(mode="after")
    def _offset_has_a_weight(self) -> "RMSNorm":
        return _offset_of_a_weight(self)


class BatchNorm(Spec):
    """Each feature normalized over the batch's positions that are no padding (Ioffe 2015).

    In training by the batch's own mean and variance, of which a running mean with weight `momentum` on the newest is
    kept; in evaluation by what was kept.
    """

    kind: Literal["batch"] = "batch"
    eps: Positive = 1e-5
    momentum: Probability = 0.1


class NoNorm(Spec):
    """The vector as it is."""

    kind: Literal["none"] = "none"


Norm = Annotated[LayerNorm | RMSNorm | BatchNorm | NoNorm, Field(discriminator="kind")]

# Norms that look at one vector alone, and so may stand inside a mixer.
VectorNorm = Annotated[LayerNorm | RMSNorm | NoNorm, Field(discriminator="kind")]


def _offset_of_a_weight(norm: Scaled) -> Scaled:
    if norm.unit_offset and not norm.weight:
        invalid("unit_offset", "there is no weight to add 1 to", "leave it out, or have a weight")
    return norm
