"""The part of a block that works on each position alone."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archetype.roles.activation import AnyActivation
from archetype.roles.feedforward import FeedForward
from archetype.spec.base import Flag, Named, Positive, Spec
from archetype.spec.kinds import part
from archetype.spec.sizes import WideWidth, Width

__all__ = ["MLP", "EightThirds", "Expert", "GatedMLP", "NoFeedForward"]


class EightThirds(Spec):
    """8/3 of d_model, rounded up to a multiple: a gated block as large as a plain one of 4 d (Shazeer 2020).

    Attributes:
        multiple_of: what the width is rounded up to a multiple of.
    """

    kind: Literal["eight_thirds"] = "eight_thirds"
    multiple_of: Width = 256


HiddenWidth = WideWidth | EightThirds


class _Projected(FeedForward):
    """Base of parts that project to a hidden width and back.

    Attributes:
        d_ff: hidden features, F: a number, or {kind: eight_thirds}.
        activation: the nonlinearity: its name, or {kind: swish, beta: ...}.
        bias: whether the projections add a bias.
        down_bias: whether the projection back adds one (absent: as the others do).
    """

    d_ff: HiddenWidth
    activation: AnyActivation
    bias: Flag = False
    down_bias: Flag | None = None

    def has_bias(self, projection: str) -> bool:
        """Whether the projection of this name adds a bias."""
        return self.bias if projection != "down" or self.down_bias is None else self.down_bias

    def widened(self, factor: int) -> Self:
        """More hidden features; eight thirds follow d_model themselves."""
        return self.replace(d_ff=factor * self.d_ff) if isinstance(self.d_ff, int) else self

    def width(self, d_model: int) -> int:
        """F, for a model of width `d_model`."""
        if isinstance(self.d_ff, EightThirds):
            exact = 8 * d_model
            unit = 3 * self.d_ff.multiple_of
            return -(-exact // unit) * self.d_ff.multiple_of
        return self.d_ff


@part
class MLP(_Projected):
    """down(activation(up(x)))."""

    title: ClassVar[str] = "MLP"
    kind: Literal["mlp"] = "mlp"


@part
class GatedMLP(_Projected):
    """down(activation(gate(x)) * up(x)) (Shazeer 2020).

    Activation sigmoid is GLU, relu ReGLU, gelu GeGLU, silu SwiGLU. A `limit` l holds gate(x) below l and up(x) within
    -l ... l; `unit_offset` multiplies by 1 + up(x) (gpt-oss has both).

    Attributes:
        limit: bound of the gate from above, and of up(x) on both sides (absent: none).
        unit_offset: whether the gate multiplies 1 + up(x).
    """

    title: ClassVar[str] = "Gated MLP"
    kind: Literal["gated"] = "gated"
    limit: Positive | None = None
    unit_offset: Flag = False


Expert = Annotated[MLP | GatedMLP, Field(discriminator="kind"), Named()]


@part
class NoFeedForward(FeedForward):
    """A block of its mixer alone."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"
