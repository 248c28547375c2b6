"""The role of residual wirings: how what the contents of a stack give is carried from one to the next."""

from typing import Annotated, ClassVar, Literal

from archetype.spec.kinds import ByKind, Part, part

__all__ = ["Residual", "ResidualSum"]


class Residual(Part):
    """Base of all residual wirings: what a content reads of the stream, and how its output is written to it.

    Its module is made as `Module(spec, place)`, once for each content of each block, and derived from
    `archetype.nn.residual.ResidualStream`.
    """

    needs: ClassVar[str] = "module"
    is_sum: ClassVar[bool] = False  # whether the stream is one vector for each position, the sum of all outputs


@part
class ResidualSum(Residual):
    """x + F(x): one vector for each position, to which every content adds (He 2015)."""

    is_sum: ClassVar[bool] = True
    kind: Literal["sum"] = "sum"


AnyResidual = Annotated[Residual, ByKind(Residual)]
