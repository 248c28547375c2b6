"""Specification of residual sums whose terms are normed or have factors."""

from typing import ClassVar, Literal

from archetype.parts.norm.spec import Affine, NoNorm
from archetype.roles.norm import VectorNorm
from archetype.roles.residual import Residual
from archetype.spec.kinds import part


@part
class NormedSum(Residual):
    """n(x) + n'(F(x)) after each sublayer F; by default, n is a learned factor per feature and n' the identity.

    Attributes:
        carried: norm of the stream before the output is added (Doge: `affine` without bias; ZAYA1: with bias).
        added: norm of the output.
    """

    title: ClassVar[str] = "Normed sum"
    kind: Literal["normed_sum"] = "normed_sum"
    carried: VectorNorm = Affine(bias=False)
    added: VectorNorm = NoNorm()


@part
class ScaledSum(Residual):
    """Sum of the embedding and the outputs of n sublayers, divided by sqrt(n + 1) (Beam).

    Sublayer n replaces the stream x by sqrt(n / (n + 1)) x + F(x) / sqrt(n + 1), which keeps the variance of a sum of
    independent terms constant with depth.
    """

    title: ClassVar[str] = "Scaled sum"
    kind: Literal["scaled_sum"] = "scaled_sum"
