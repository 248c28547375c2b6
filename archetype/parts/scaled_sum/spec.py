"""Specification of residual sums of a size that does not grow with depth."""

from typing import ClassVar, Literal

from archetype.roles.residual import Residual
from archetype.spec.kinds import part

__all__ = ["ScaledSum"]


@part
class ScaledSum(Residual):
    """Sum of the embedding and the outputs of n sublayers, divided by sqrt(n + 1) (Beam).

    Sublayer n replaces the stream x by sqrt(n / (n + 1)) x + F(x) / sqrt(n + 1), which keeps the variance of a sum of
    independent terms constant with depth.
    """

    title: ClassVar[str] = "Scaled sum"
    kind: Literal["scaled_sum"] = "scaled_sum"
