"""The role of wirings: where norms and residuals go around a block's contents."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["Wiring"]


class Wiring(Part):
    """Base of all wirings."""

    normalizes_input: ClassVar[bool] = False  # of each content, which leaves the sum of all as it is
    normalizes_output: ClassVar[bool] = False  # of the last content, or its sum with the residual


AnyWiring = Annotated[Wiring, ByKind(Wiring)]
