"""The role of norms: what is done to a vector before or after a block's contents."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["Norm", "VectorNorm"]


class Norm(Part):
    """Base of all norms."""

    needs: ClassVar[str] = "module"
    per_vector: ClassVar[bool] = True  # whether it reads one vector alone, and so may stand inside a mixer


AnyNorm = Annotated[Norm, ByKind(Norm)]


VectorNorm = Annotated[Norm, ByKind(Norm, "per_vector")]
