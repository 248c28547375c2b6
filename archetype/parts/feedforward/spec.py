"""Feed-forward networks, applied to each position separately."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from archetype.parts.convolutions.spec import Convolutions
from archetype.parts.gain.spec import Gain
from archetype.parts.norm.spec import NoNorm
from archetype.roles.activation import AnyActivation
from archetype.roles.feedforward import FeedForward
from archetype.roles.norm import VectorNorm
from archetype.spec.base import Flag, Positive, Spec
from archetype.spec.errors import inside, invalid
from archetype.spec.kinds import Named, part
from archetype.spec.sizes import WideWidth, Width

__all__ = ["MLP", "EightThirds", "Expert", "GatedMLP", "NetworkConvolutions", "NoFeedForward"]


class NetworkConvolutions(Convolutions):
    """Short convolutions over a feed-forward network's input, hidden features and output.

    Canon layers convolve the input (C) and the hidden features (D).

    Attributes:
        at: any of `input`, `hidden` (the outputs of gate and up before the activation) and `output`.
    """

    at: tuple[Literal["input", "hidden", "output"], ...] = ("input", "hidden")


class EightThirds(Spec):
    """8/3 of d_model, rounded up, which gives a gated network the size of an MLP of width 4 d_model (Shazeer 2020).

    Attributes:
        multiple_of: the width is rounded up to a multiple of this.
    """

    kind: Literal["eight_thirds"] = "eight_thirds"
    multiple_of: Width = 256


HiddenWidth = WideWidth | EightThirds


class _Projected(FeedForward):
    """Base of networks that project to a hidden width and back.

    Attributes:
        d_ff: hidden width, F: an integer or {kind: eight_thirds}.
        activation: name of the activation, or {kind: swish, beta: ...}; xielu and poly_norm have learned parameters.
        bias: whether the projections have a bias.
        down_bias: whether the down projection has a bias (absent: same as `bias`).
        hidden_gain: learned factor on each hidden feature before the activation (absent: none; nGPT).
        hidden_norm: norm of the hidden features before the down projection (BitNet b1.58).
        convolutions: short convolutions over the latest positions (absent: none).
    """

    d_ff: HiddenWidth
    activation: AnyActivation
    bias: Flag = False
    down_bias: Flag | None = None
    hidden_gain: Gain | None = None
    hidden_norm: VectorNorm = NoNorm()
    convolutions: NetworkConvolutions | None = None

    @property
    def separates_documents(self) -> bool:
        return self.convolutions is None

    def check(self, width: int, causal: bool) -> None:
        if self.convolutions is not None:
            with inside("convolutions"):
                self.convolutions.check(causal)

    def has_bias(self, projection: str) -> bool:
        return self.bias if projection != "down" or self.down_bias is None else self.down_bias

    def widened(self, factor: int) -> Self:
        # eight thirds already follow d_model
        return self.replace(d_ff=factor * self.d_ff) if isinstance(self.d_ff, int) else self

    def width(self, d_model: int) -> int:
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

    Activation sigmoid gives GLU, relu ReGLU, gelu GeGLU, silu SwiGLU. A `limit` l clamps gate(x) to at most l and up(x)
    to -l ... l; `unit_offset` multiplies by 1 + up(x) (gpt-oss uses both). An `up_bound` b replaces up(x) by
    b tanh(up(x) / b); Kimi K3 and Inkling 2 use it with the activation situ.

    Attributes:
        limit: upper bound on gate(x) and bound on |up(x)| (absent: no clamping).
        limit_after: whether activation(gate(x)) is clamped instead of gate(x) (Step 3.5).
        unit_offset: whether the gate multiplies 1 + up(x).
        up_bound: smooth bound on |up(x)| (absent: none).
    """

    title: ClassVar[str] = "Gated MLP"
    kind: Literal["gated"] = "gated"
    limit: Positive | None = None
    limit_after: Flag = False
    unit_offset: Flag = False
    up_bound: Positive | None = None

    @model_validator(mode="after")
    def _bounds_with_a_limit(self) -> Self:
        if self.limit_after and self.limit is None:
            invalid("limit_after", "there is no limit", "remove it, or add a limit")
        return self

    @property
    def changes_factors(self) -> bool:
        """Whether anything but the activation precedes the product."""
        return self.limit is not None or self.up_bound is not None or self.unit_offset


Expert = Annotated[MLP | GatedMLP, Field(discriminator="kind"), Named()]


@part
class NoFeedForward(FeedForward):
    """No feed-forward network: the block has only its mixer."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"
