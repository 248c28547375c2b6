"""Real-gated linear recurrent unit: a vector of constant size whose features decay by gates (Griffin)."""

from typing import ClassVar, Literal

from archetype.parts.activation.spec import GELUTanh
from archetype.roles.activation import AnyActivation
from archetype.roles.mixer import Mixer
from archetype.spec.base import Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, Width


@part
class RGLRU(Mixer):
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t, a_t = exp(-8 softplus(l) r_t), u = conv(x W) (De 2024, section 2.4).

    The gates i_t and r_t are sigmoids of block-diagonal projections of u, with `num_heads` blocks. The output is o(h *
    activation(gate(x))). The first token of a sequence is written without the factor sqrt(1 - a_t^2).

    Attributes:
        num_heads: number of diagonal blocks in the gate projections, H.
        width: width of the recurrence, I (absent: d_model).
        conv_kernel: kernel size of the convolution in positions.
        activation: activation of the gate on the output.
        chunk_size: tokens per chunk; does not change the result.
    """

    title: ClassVar[str] = "RG-LRU"
    kind: Literal["rg_lru"] = "rg_lru"
    num_heads: Heads
    width: Width | None = None
    conv_kernel: Size = 4
    activation: AnyActivation = GELUTanh()
    chunk_size: Size = 64

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "this recurrence is causal", "use it in a decoder")
        if self.inner(width) % self.num_heads:
            cause = f"{self.num_heads} does not divide {self.inner(width)} features"
            invalid("num_heads", cause, "use a divisor of the width")

    def inner(self, d_model: int) -> int:
        return self.width or d_model
