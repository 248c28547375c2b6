"""Mamba-3: a state space read in chunks, without convolution."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.mamba.spec import check_steps
from archetype.roles.mixer import Mixer
from archetype.spec.base import Flag, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth


@part
class Mamba3(Mixer):
    """h_t = a_t h_{t-1} + (1 - l_t) d_t a_t b_{t-1} x_{t-1}^T + l_t d_t b_t x_t^T, y_t = h_t^T c_t (Lahoti 2026).

    a_t = exp(-g_t d_t); each head's step d_t, rate g_t and weight l_t depend on the token. The two writes are a
    trapezoidal rule, which replaces the convolution. b and c are normalized, have biases per head, and are rotated by
    angles with token-dependent steps pi d_t tanh(theta_t), which is equivalent to a complex state. With `rank` r > 1,
    each step writes and reads r vectors: b, c, x and the gate z have r rows (MIMO).

    Attributes:
        num_heads: number of heads, H.
        head_dim: width of a head, P.
        state_size: rows of each head's memory, Z.
        num_groups: groups of heads that share b and c (except their biases); a divisor of `num_heads`, K.
        rank: number of vectors that a step writes and reads, r.
        rotary_dim: rotated features of b and c, in adjacent pairs (absent: half of the features).
        norm: whether an RMS norm is applied to each head's y before the gate.
        least_rate: minimum rate g_t.
        eps: epsilon of the norms.
        chunk_size: tokens per chunk; does not change the result.
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
    """

    title: ClassVar[str] = "Mamba-3"
    letters: ClassVar[Mapping[str, str]] = {"K": "groups of b and c", "r": "vectors that a step writes and reads"}
    kind: Literal["mamba3"] = "mamba3"
    num_heads: Heads
    head_dim: HeadWidth = 64
    state_size: Size = 128
    num_groups: Size = 1
    rank: Size = 1
    rotary_dim: Size | None = None
    norm: Flag = False
    least_rate: Positive = 1e-4
    eps: Positive = 1e-5
    chunk_size: Size = 64
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Mamba3":
        if self.num_heads % self.num_groups:
            invalid("num_groups", f"{self.num_groups} does not divide num_heads {self.num_heads}", "use a divisor")
        if self.rotary_dim is not None and (self.rotary_dim % 2 or self.rotary_dim > self.state_size):
            cause = f"{self.rotary_dim} of {self.state_size} features cannot be rotated in pairs"
            invalid("rotary_dim", cause, "use an even number that is not larger")
        if self.angles < 1:
            invalid("state_size", f"half of {self.state_size} is odd", "use at least 4, or set rotary_dim")
        check_steps(self.dt_min, self.dt_max)
        return self

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "a state space model is causal", "use it in a decoder")

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def angles(self) -> int:
        """Number of pairs of features that turn."""
        return (self.state_size // 2 if self.rotary_dim is None else self.rotary_dim) // 2

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the projections to gate, x, b, c, steps, rates, weights and angles."""
        rows = self.rank * self.num_groups * self.state_size
        return self.inner, self.inner, rows, rows, *3 * (self.num_heads,), self.angles
