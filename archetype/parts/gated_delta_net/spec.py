"""Gated delta networks: attention without softmax, with a memory that is corrected and fades."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.roles.mixer import Mixer
from archetype.spec.base import Flag, Positive, Size, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

__all__ = ["GatedDeltaNet"]


@part
class GatedDeltaNet(Mixer):
    """S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T, o_t = S_t^T q_t (Yang 2024b; Qwen3-Next).

    Queries, keys and values pass a convolution; queries and keys have length one. A key head serves `num_heads` /
    `num_key_heads` heads of values. The decay a_t and the rate b_t, between 0 and 1, follow the token; with
    `negative_eigenvalues` the rate reaches 2 (Grazzi 2024). A norm with `eps` and a gate stand behind. A text is read
    `chunk_size` tokens at a time, which changes no result.

    Attributes:
        num_heads: heads of values, H.
        num_key_heads: heads of queries and keys, a divisor of `num_heads` (absent: as many).
        head_dim: features of a head's query and key, P.
        v_head_dim: features of a head's value, Q.
        conv_kernel: positions that the convolution reads.
        chunk_size: tokens that are read as one product.
        negative_eigenvalues: whether corrections reach twice as far.
        eps: added to the mean square by the norm behind the gate.
    """

    letters: ClassVar[Mapping[str, str]] = {
        "H": "value heads", "K": "key heads", "P": "features of a head's query and key"
    }  # fmt: skip
    kind: Literal["gated_delta_net"] = "gated_delta_net"
    num_heads: Heads
    num_key_heads: Heads | None = None
    head_dim: HeadWidth = 128
    v_head_dim: HeadWidth = 128
    conv_kernel: Size = 4
    chunk_size: Size = 64
    negative_eigenvalues: Flag = False
    eps: Positive = 1e-6

    @model_validator(mode="after")
    def _heads_divide(self) -> "GatedDeltaNet":
        if self.num_heads % self.key_heads:
            cause = f"{self.key_heads} does not divide num_heads {self.num_heads}"
            invalid("num_key_heads", cause, "use a divisor of it")
        return self

    @property
    def key_heads(self) -> int:
        """Heads of queries and keys."""
        return self.num_key_heads or self.num_heads

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.head_dim + self.num_heads * self.v_head_dim
