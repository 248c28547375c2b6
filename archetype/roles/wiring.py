"""The role of wirings: the placement of norms and residual connections around a block's sublayers."""

from typing import Annotated, ClassVar

from archetype.roles.norm import Norm
from archetype.spec.kinds import ByKind, Part

__all__ = ["Wiring"]


class Wiring(Part):
    """Base class of wirings."""

    needs: ClassVar[str] = "module"
    normalizes_input: ClassVar[bool] = False  # of each content, while the sum itself is not normalized
    normalizes_output: ClassVar[bool] = False  # of the last content, or of its sum with the residual
    adds_to_stream: ClassVar[bool] = False  # whether every content is added to a stream that nothing else changes

    def norm_of(self, content: str, norm: str = "norm") -> Norm:
        """Return a norm of one content.

        Args:
            content: `mixer`, `cross` or `feedforward`.
            norm: which of its norms, by the end of the module's name: `norm` or `post_norm`.
        """
        shared: Norm = getattr(self, "norm")  # noqa: B009
        return shared


AnyWiring = Annotated[Wiring, ByKind(Wiring)]
