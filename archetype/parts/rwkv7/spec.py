"""RWKV-7: linear attention with the generalized delta rule, on tokens that are mixed with the previous one."""

from typing import ClassVar, Literal

from archetype.roles.mixer import Mixer
from archetype.spec.base import LayerIndex, NotNegative, Positive, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, Width

MIXED = ("r", "decay", "k", "v", "rate", "gate")  # what x_t and x_{t-1} are mixed for: r, w, k, v, a, g of the paper


@part
class RWKV7(Mixer):
    """S_t = (diag(w_t) - (a_t z_t) z_t^T) S_{t-1} + k_t v_t^T, y_t = S_t^T r_t, with a bonus for v_t (Peng 2025).

    Receptance r, decay w, removal key z with its rate a, key k and value v are computed from x_t mixed with x_{t-1},
    each with its own learned mixing weights. Decays, rates and gates use low-rank projections. Each head's y_t is
    normalized and gated. All layers after the first mix their values with the first layer's values. The state holds S
    and the last token's vector.

    Attributes:
        num_heads: number of heads, H, of d_model / H features each.
        decay_rank: rank of the projection to decays.
        rate_rank: rank of the projection to the removal rates a.
        gate_rank: rank of the projection to the gate.
        value_rank: rank of the projection to the mixing weights of another layer's values.
        values_from: earlier layer whose values are mixed in: its index, or a negative offset from this layer (absent:
            none, as in the first layer).
        eps: epsilon of the norm.
        length_eps: added to the squared length of a removal key, by which the key is divided (1e-6 in kernels of
            flash-linear-attention).
        chunk_size: tokens per chunk; does not change the result.
    """

    title: ClassVar[str] = "RWKV-7"
    source_name: ClassVar[str] = "values"
    kind: Literal["rwkv7"] = "rwkv7"
    num_heads: Heads
    decay_rank: Width = 64
    rate_rank: Width = 64
    gate_rank: Width = 128
    value_rank: Width = 32
    values_from: LayerIndex | None = None
    eps: Positive = 64e-5
    length_eps: NotNegative = 0.0
    chunk_size: Size = 32

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "RWKV is causal", "use it in a decoder")
        if width % self.num_heads:
            invalid("num_heads", f"{self.num_heads} does not divide d_model {width}", "use a divisor of d_model")

    @property
    def vectors(self) -> list[str]:
        """Names of vectors: shares of x_{t-1}, factors of removed keys and of keys, and biases of logits."""
        biases = [name for name in self.ranks if name != "gate"]
        return [f"mix_{name}" for name in MIXED] + ["removed", "key_rate", *biases]

    @property
    def ranks(self) -> dict[str, int]:
        """Return the ranks of the projections of low rank."""
        ranks = {"decay": self.decay_rank, "rate": self.rate_rank, "gate": self.gate_rank}
        return ranks if self.values_from is None else ranks | {"value_share": self.value_rank}

    def source(self, layer: int) -> int | None:
        return self.values_from if self.values_from is None or self.values_from >= 0 else layer + self.values_from

    @property
    def own(self) -> "RWKV7":
        return self.replace(values_from=None)

    def check_source(self, source: Mixer, width: int) -> None:
        if not isinstance(source, RWKV7) or source.values_from is not None:
            invalid("values_from", "the mixer of the referenced layer publishes no values", "name another layer")
