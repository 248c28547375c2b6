"""The role of norms, before or after a block's sublayers."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["Norm", "VectorNorm"]


class Norm(Part):
    """Base class of norms."""

    needs: ClassVar[str] = "module"
    # whether parts may have it inside: it normalizes each vector separately, and without products of matrices
    serves_inside: ClassVar[bool] = True


AnyNorm = Annotated[Norm, ByKind(Norm)]


VectorNorm = Annotated[Norm, ByKind(Norm, "serves_inside")]
