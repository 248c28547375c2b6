"""The role of wirings: the placement of norms and residual connections around a block's sublayers."""

from typing import Annotated, ClassVar

from archetype.roles.norm import Norm
from archetype.spec.kinds import ByKind, Part


class Wiring(Part):
    """Base class of wirings."""

    needs: ClassVar[str] = "module"
    normalizes_input: ClassVar[bool] = False  # normalizes the input of each content, but not the sum (pre-norm)
    normalizes_output: ClassVar[bool] = False  # normalizes the output of the last content, or its sum with the residual
    adds_to_stream: ClassVar[bool] = False  # every content is added to the residual stream, which nothing else changes
    reads_first: ClassVar[bool] = False  # all contents read the stream before one of them writes to it

    def norm_of(self, content: str, norm: str = "norm") -> Norm:
        """Return a norm of one sublayer.

        Args:
            content: `mixer`, `cross` or `feedforward`.
            norm: `norm` or `post_norm`, the end of the module's name.
        """
        return getattr(self, "norm")  # noqa: B009  # a field of each kind, unknown to the base class


AnyWiring = Annotated[Wiring, ByKind(Wiring)]
