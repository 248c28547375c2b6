"""RWKV-4: weighted sums of values, whose weights decay and whose newest token has a bonus."""

from typing import ClassVar, Literal

from archetype.roles.mixer import Mixer
from archetype.spec.base import Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class RWKV4(Mixer):
    """o(sigmoid(r) y), y_t = (a_{t-1} + exp(u + k_t) v_t) / (b_{t-1} + exp(u + k_t)) for each feature (Peng 2023).

    a_t = exp(-exp(w)) a_{t-1} + exp(k_t) v_t, and b_t is the same sum without v. Receptance r, key k and value v are
    projections of x_t mixed with x_{t-1} by a learned weight per feature. The state holds a and b divided by exp(m_t),
    the largest weight so far, and the last token's vector.

    Attributes:
        width: width of the recurrence, I (absent: d_model).
        chunk_size: tokens per chunk; does not change the result.
    """

    title: ClassVar[str] = "RWKV-4"
    kind: Literal["rwkv4"] = "rwkv4"
    width: Width | None = None
    chunk_size: Size = 64

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "RWKV is causal", "use it in a decoder")
