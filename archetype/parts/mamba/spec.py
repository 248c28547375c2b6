"""Mamba: a state space whose steps, inputs and outputs depend on the token."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import NoNorm
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.spec.base import Flag, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class Mamba(Mixer):
    """Selective state space (Gu 2023, algorithm 2): convolution, scan, gate.

    Each of E = expand * d_model channels has a state of `state_size` values, which decays by exp(delta A); delta, B and
    C depend on the token. `norm` applies to B, C and the input of delta (Jamba).

    Attributes:
        expand: inner channels per feature of d_model.
        state_size: state size of each channel, Z.
        conv_kernel: kernel size of the convolution in positions.
        dt_rank: rank of the projection to step sizes (absent: d_model / 16, rounded up).
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
        norm: norm of B, C and the input of delta.
    """

    letters: ClassVar[Mapping[str, str]] = {"r": "rank of delta's projection"}
    kind: Literal["mamba"] = "mamba"
    expand: Size = 2
    state_size: Size = 16
    conv_kernel: Size = 4
    dt_rank: Width | None = None
    conv_bias: Flag = True
    bias: Flag = False
    norm: VectorNorm = NoNorm()
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1

    @model_validator(mode="after")
    def _steps_are_ordered(self) -> "Mamba":
        check_steps(self.dt_min, self.dt_max)
        return self

    def rank(self, d_model: int) -> int:
        return self.dt_rank or -(-d_model // 16)


def check_steps(dt_min: float, dt_max: float) -> None:
    if dt_max < dt_min:
        invalid("dt_max", f"{dt_max} is below dt_min {dt_min}", "use a larger dt_max")
