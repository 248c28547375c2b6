"""Normalization: what is done to a vector of `d_model` features before or after a block's contents."""

from typing import Annotated, Literal

from pydantic import Field

from archetype.spec.base import Flag, Positive, Spec


class LayerNorm(Spec):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba 2016)."""

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: Flag = True


class RMSNorm(Spec):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019)."""

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-5


class NoNorm(Spec):
    """The vector as it is."""

    kind: Literal["none"] = "none"


Norm = Annotated[LayerNorm | RMSNorm | NoNorm, Field(discriminator="kind")]
