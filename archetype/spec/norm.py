"""Normalization: what is done to a vector of `d_model` features before or after a block's contents."""

from typing import Annotated, Literal

from pydantic import Field

from archetype.spec.base import Flag, Positive, Probability, Spec


class LayerNorm(Spec):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba 2016)."""

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: Flag = True


class RMSNorm(Spec):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang 2019); `unit_offset` multiplies by 1 + weight (Gemma)."""

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-5
    unit_offset: Flag = False


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
