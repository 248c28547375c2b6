"""Specification of residual sums whose terms are normed or have learned factors."""

from typing import ClassVar, Literal

from archetype.parts.norm.spec import Affine, NoNorm
from archetype.roles.norm import VectorNorm
from archetype.roles.residual import Residual
from archetype.spec.kinds import part

__all__ = ["NormedSum"]


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
