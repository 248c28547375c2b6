"""The role of norms, before or after a block's sublayers."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["Norm", "VectorNorm"]


class Norm(Part):
    """Base class of norms."""

    needs: ClassVar[str] = "module"
    per_vector: ClassVar[bool] = True  # whether it normalizes each vector separately, as norms within mixers must


AnyNorm = Annotated[Norm, ByKind(Norm)]


VectorNorm = Annotated[Norm, ByKind(Norm, "per_vector")]
