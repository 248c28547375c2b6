"""mLSTM: linear attention with exponential gates, whose sums are normalized (xLSTM)."""

from typing import ClassVar, Literal

from archetype.roles.mixer import Mixer
from archetype.spec.base import Flag, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth


@part
class MLSTM(Mixer):
    """C_t = f_t C_{t-1} + i_t k_t v_t^T, n_t = f_t n_{t-1} + i_t k_t, h_t = C_t^T q_t / max(|n_t^T q_t|, 1).

    The matrix memory of xLSTM (Beck 2024, section 2.3), as in xLSTM 7B (Beck 2025). Each head has an exponential input
    gate i_t and a sigmoid forget gate f_t, computed from the token. The state holds C and n divided by exp(m_t), the
    largest write so far, which prevents overflow. Each head's h_t is normalized and multiplied by a sigmoid gate.

    Attributes:
        num_heads: number of heads, H.
        head_dim: width of a head's query and key, P (absent: half of a head's value).
        v_head_dim: width of a head's value, Q (absent: d_model / num_heads).
        gate_softcap: c of the soft cap c tanh(logit / c) on the gates' logits (absent: no cap).
        bias: whether queries, keys, values, the output gate, the norm and the output have a bias.
        norm_eps: epsilon of the norm.
        eps: epsilon added to the denominator of h_t after the division by exp(m_t).
        chunk_size: tokens per chunk; does not change the result.
    """

    title: ClassVar[str] = "mLSTM"
    kind: Literal["mlstm"] = "mlstm"
    num_heads: Heads
    head_dim: HeadWidth | None = None
    v_head_dim: HeadWidth | None = None
    gate_softcap: Positive | None = 15.0
    bias: Flag = False
    norm_eps: Positive = 1e-6
    eps: Positive = 1e-6
    chunk_size: Size = 64

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "an mLSTM is causal", "use it in a decoder")
        if self.v_head_dim is None and width % self.num_heads:
            cause = f"{self.num_heads} does not divide d_model {width}"
            invalid("num_heads", cause, "use a divisor, or set v_head_dim")
        if self.head_dim is None and self.value_size(width) % 2:
            cause = f"is absent, and a value of {self.value_size(width)} features cannot be halved"
            invalid("head_dim", cause, "set head_dim")

    def key_size(self, width: int) -> int:
        return self.head_dim or self.value_size(width) // 2

    def value_size(self, width: int) -> int:
        return self.v_head_dim or width // self.num_heads
