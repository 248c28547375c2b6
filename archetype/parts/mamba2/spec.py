"""Mamba-2: a state space whose heads have one decay each, so that sequences are computed in chunks of products."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.mamba.spec import check_steps
from archetype.roles.mixer import Mixer
from archetype.spec.base import Finite, Flag, NotNegative, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth


@part
class Mamba2(Mixer):
    """Structured state space duality (Dao 2024, section 7): convolution, scan, gated norm.

    Each of `num_heads` heads has `head_dim` channels with a state of `state_size` values each, which decay by exp(delta
    A). The heads of a group share B and C. Sequences are processed in chunks of `chunk_size` tokens, which does not
    change the result. The gated norm, with `eps`, normalizes each group separately. Falcon-H1 (Zuo 2025) omits the norm
    or applies it before the gate, and multiplies the parts of `in_proj` by constants.

    Attributes:
        num_heads: number of heads, H.
        head_dim: channels per head, P.
        state_size: state size of each channel, Z.
        num_groups: groups of heads that share B and C.
        conv_kernel: kernel size of the convolution in positions.
        chunk_size: tokens per chunk.
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.
        norm: position of the norm: after the gate, before the gate, or none.
        eps: epsilon of the gated norm, added to the mean square.
        in_scales: factors on the gate, the channels, B, C and the step sizes (absent: 1).
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
        dt_limit_min: lower limit of the step sizes.
        dt_limit_max: upper limit of the step sizes (absent: none).
    """

    title: ClassVar[str] = "Mamba-2"
    letters: ClassVar[Mapping[str, str]] = {"K": "groups of heads that share B and C"}
    kind: Literal["mamba2"] = "mamba2"
    num_heads: Heads
    head_dim: HeadWidth = 64
    state_size: Size = 128
    num_groups: Size = 1
    conv_kernel: Size = 4
    chunk_size: Size = 256
    conv_bias: Flag = True
    bias: Flag = False
    norm: Literal["after_gate", "before_gate", "none"] = "after_gate"
    eps: Positive = 1e-5
    in_scales: tuple[Finite, Finite, Finite, Finite, Finite] | None = None
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    dt_limit_min: NotNegative = 0.0
    dt_limit_max: Positive | None = None

    @model_validator(mode="after")
    def _groups_divide(self) -> "Mamba2":
        if self.num_heads % self.num_groups:
            cause = f"{self.num_groups} does not divide num_heads {self.num_heads}"
            invalid("num_groups", cause, "use a divisor of num_heads")
        check_steps(self.dt_min, self.dt_max)
        if self.dt_limit_max is not None and self.dt_limit_max < self.dt_limit_min:
            invalid(
                "dt_limit_max",
                f"{self.dt_limit_max} is below dt_limit_min {self.dt_limit_min}",
                "use a larger dt_limit_max",
            )
        return self

    @property
    def limits_steps(self) -> bool:
        return self.dt_limit_min > 0 or self.dt_limit_max is not None

    @property
    def has_norm(self) -> bool:
        return self.norm != "none"

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        # the channels of all heads, and B and C of all groups
        return self.inner + 2 * self.num_groups * self.state_size
