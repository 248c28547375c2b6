"""Gated delta networks: linear attention whose memory decays and is corrected by each token."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.mixer import Mixer
from archetype.spec.base import MAX_FLOAT, Flag, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

Negative = Annotated[float, Field(strict=True, ge=-MAX_FLOAT, lt=0, allow_inf_nan=False)]


@part
class GatedDeltaNet(Mixer):
    """S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T, o_t = S_t^T q_t (Yang 2024b; Qwen3-Next).

    Queries, keys and values pass through a convolution; queries and keys have unit length. A key head serves
    `num_heads` / `num_key_heads` value heads. The decay a_t and the write rate b_t, between 0 and 1, depend on the
    token; with `negative_eigenvalues`, the rate reaches 2 (Grazzi 2024). A gated norm with `eps` follows. Sequences are
    processed in chunks of `chunk_size` tokens, which does not change the result. With `decay: channel`, each row of the
    memory has its own a_t (Kimi delta attention, Kimi Team 2025); with `decay: none`, it is DeltaNet (Yang 2024).

    Attributes:
        num_heads: number of value heads, H.
        num_key_heads: number of query and key heads, a divisor of `num_heads` (absent: `num_heads`).
        head_dim: width of a head's query and key, P.
        v_head_dim: width of a head's value, Q.
        conv_kernel: kernel size of the convolution in positions.
        chunk_size: tokens per chunk.
        negative_eigenvalues: whether the rate b_t ranges from 0 to 2 instead of 0 to 1.
        decay: granularity of the decay: per head, per channel of a head's key, or none.
        decay_rank: rank of the projection to per-channel decays (absent: a full matrix).
        decay_bound: lower bound of log a_t, which is then the bound times a sigmoid (absent: a softplus instead).
        gate: activation of the gate on the normalized output (none: no gate).
        gate_rank: rank of the projection to the gate (absent: a full matrix).
        gate_bias: whether the projection to the gate has a bias.
        eps: epsilon of the gated norm, added to the mean square.
    """

    letters: ClassVar[Mapping[str, str]] = {
        "H": "value heads",
        "K": "key heads",
        "P": "features of a head's query and key",
    }
    kind: Literal["gated_delta_net"] = "gated_delta_net"
    num_heads: Heads
    num_key_heads: Heads | None = None
    head_dim: HeadWidth = 128
    v_head_dim: HeadWidth = 128
    conv_kernel: Size = 4
    chunk_size: Size = 64
    negative_eigenvalues: Flag = False
    decay: Literal["head", "channel", "none"] = "head"
    decay_rank: HeadWidth | None = None
    decay_bound: Negative | None = None
    gate: Literal["none", "silu", "sigmoid"] = "silu"
    gate_rank: HeadWidth | None = None
    gate_bias: Flag = False
    eps: Positive = 1e-6

    @model_validator(mode="after")
    def _fields_agree(self) -> "GatedDeltaNet":
        if self.num_heads % self.key_heads:
            cause = f"{self.key_heads} does not divide num_heads {self.num_heads}"
            invalid("num_key_heads", cause, "use a divisor of num_heads")
        if self.decay_rank is not None and self.decay != "channel":
            invalid("decay_rank", "needs a per-channel decay", "use decay: channel, or remove it")
        if self.decay_bound is not None and self.decay == "none":
            invalid("decay_bound", "needs a decay", "remove it")
        for name in ("gate_rank", "gate_bias"):
            if self.gate == "none" and getattr(self, name):
                invalid(name, "needs a gate", "use gate: silu, or remove it")
        return self

    @property
    def decays(self) -> int:
        # of a token
        return {"head": self.num_heads, "channel": self.num_heads * self.head_dim, "none": 0}[self.decay]

    @property
    def key_heads(self) -> int:
        return self.num_key_heads or self.num_heads

    @property
    def conv_channels(self) -> int:
        # queries, keys and values
        return 2 * self.key_heads * self.head_dim + self.num_heads * self.v_head_dim
