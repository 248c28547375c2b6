"""The role of residual wirings: how the outputs of sublayers are carried through a stack."""

from typing import Annotated, ClassVar, Literal

from archetype.spec.kinds import ByKind, Part, part


class Residual(Part):
    """Base class of residual wirings: how a sublayer reads from the residual stream and writes to it.

    Its module is constructed as `Module(spec, place)`, once for each sublayer of each block, or for each block, and is
    derived from `archetype.nn.residual.ResidualStream`.
    """

    needs: ClassVar[str] = "module"
    is_sum: ClassVar[bool] = False  # whether the stream is one vector per position, the sum of all outputs
    per_block: ClassVar[bool] = False  # read and written once per block, which sums the outputs of its sublayers
    grows: ClassVar[bool] = False  # whether the stream has more vectors after later layers

    @property
    def streams(self) -> int:
        """Number of residual vectors of a position that a part may read and write together; 1 if it may not."""
        return 1


@part
class ResidualSum(Residual):
    """Residual sum x + F(x): every sublayer adds to one vector per position (He 2015)."""

    is_sum: ClassVar[bool] = True
    kind: Literal["sum"] = "sum"


AnyResidual = Annotated[Residual, ByKind(Residual)]
