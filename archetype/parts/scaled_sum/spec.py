"""Specification of residual sums of a size that does not grow with depth."""

from typing import ClassVar, Literal

from archetype.roles.residual import Residual
from archetype.spec.kinds import part

__all__ = ["ScaledSum"]


@part
class ScaledSum(Residual):
    """The embedding and the outputs of n sublayers, summed and divided by sqrt(n + 1) (Beam).

    Sublayer n makes sqrt(n / (n + 1)) x + F(x) / sqrt(n + 1) of the stream x, so that a sum of independent terms of
    one size keeps that size at any depth.
    """

    title: ClassVar[str] = "Scaled sum"
    kind: Literal["scaled_sum"] = "scaled_sum"
