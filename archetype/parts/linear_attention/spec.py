"""Linear attention: attention without softmax, whose memory of constant size may decay."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import NoPosition, Rotary
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AnyMixerPosition
from archetype.spec.base import Flag, Positive, Probability, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import Named, part
from archetype.spec.sizes import Heads, HeadWidth, ScoreScale

__all__ = ["ChannelDecay", "Decay", "FixedDecay", "HeadDecay", "LinearAttention", "NoDecay"]


class NoDecay(Spec):
    """a_t = 1: no decay (Katharopoulos 2020, without the normalizer)."""

    kind: Literal["none"] = "none"


class FixedDecay(Spec):
    """Constant decay per head: 1 - 2^(-5-h) in retention, exp(-2^(-8 (h+1) / H)) with ALiBi's slopes.

    Attributes:
        form: `retention` (Sun 2023), or `alibi` as in lightning attention (MiniMax 2025).
        factor: factor on the logarithm of the decay; lightning attention decreases it from layer to layer.
    """

    kind: Literal["fixed"] = "fixed"
    form: Literal["retention", "alibi"] = "retention"
    factor: Positive = 1.0

    def rates(self, num_heads: int) -> list[float]:
        """Return the negative logarithm of each head's decay."""
        heads = range(num_heads)
        if self.form == "retention":
            return [-math.log1p(-(2.0 ** -(5 + head))) * self.factor for head in heads]
        return [2.0 ** (-8.0 * (head + 1) / num_heads) * self.factor for head in heads]


class HeadDecay(Spec):
    """One decay per head and token: sigmoid(a(x))^(1 / temperature).

    Attributes:
        temperature: exponent's divisor; larger values slow the decay.
        bias: whether the projection a has a bias.
    """

    kind: Literal["per_head"] = "per_head"
    temperature: Positive = 16.0
    bias: Flag = True


class ChannelDecay(Spec):
    """One decay per memory row and token: floor + (1 - floor) sigmoid(a(x))^(1 / temperature).

    Attributes:
        rank: rank of the projection a (absent: a full matrix).
        temperature: exponent's divisor; larger values slow the decay.
        floor: smallest decay.
        bias: whether the projection a has a bias.
        gives_keys: whether keys are 1 - a_t instead of a projection (HGRN2; Qin 2024).
    """

    kind: Literal["per_channel"] = "per_channel"
    rank: HeadWidth | None = None
    temperature: Positive = 16.0
    floor: Probability = 0.0
    bias: Flag = True
    gives_keys: Flag = False


Decay = Annotated[NoDecay | FixedDecay | HeadDecay | ChannelDecay, Field(discriminator="kind"), Named()]


@part
class LinearAttention(Mixer):
    """S_t = a_t S_{t-1} + k_t v_t^T, o_t = S_t^T q_t, then norm and gate: no softmax (Katharopoulos 2020).

    Variants are retention (RetNet; Sun 2023: fixed decays, rotary positions), lightning attention (MiniMax 2025: fixed
    decays, SiLU on queries, keys and values), gated linear attention (GLA; Yang 2023: per-channel decays) and HGRN2
    (Qin 2024: keys are 1 - a_t). The gate multiplies the normalized output. Sequences are processed in chunks of
    `chunk_size` tokens, which does not change the result.

    Attributes:
        num_heads: number of heads, H.
        head_dim: width of a head's query and key, P (absent: d_model / num_heads).
        v_head_dim: width of a head's value, Q (absent: head_dim).
        conv_kernel: kernel size of a convolution over queries, keys and values, before the feature map (absent: none).
        feature_map: activation of queries and of projected keys; `elu` is 1 + elu(x), which is positive.
        value_activation: activation of values.
        qk_norm: norm of each head's query and key.
        position: rotary positions of queries and keys.
        scale: factor on queries (absent: 1 / sqrt(head_dim)).
        decay: decay of the memory at each token, a_t.
        norm: norm of the output.
        norm_over: whether `norm` normalizes each head, with shared weights, or all heads together.
        gate: activation of the gate on the normalized output (none: no gate).
        gate_rank: rank of the projection to the gate (absent: a full matrix).
        chunk_size: tokens per chunk.
    """

    kind: Literal["linear_attention"] = "linear_attention"
    num_heads: Heads
    head_dim: HeadWidth | None = None
    v_head_dim: HeadWidth | None = None
    conv_kernel: Size | None = None
    feature_map: Literal["none", "silu", "relu", "elu"] = "none"
    value_activation: Literal["none", "silu"] = "none"
    qk_norm: VectorNorm = NoNorm()
    position: AnyMixerPosition = NoPosition()
    scale: ScoreScale | None = None
    decay: Decay = NoDecay()
    norm: VectorNorm = RMSNorm()
    norm_over: Literal["head", "all"] = "head"
    gate: Literal["none", "silu", "sigmoid"] = "none"
    gate_rank: HeadWidth | None = None
    chunk_size: Size = 64

    @model_validator(mode="after")
    def _fields_agree(self) -> "LinearAttention":
        if self.gate == "none" and self.gate_rank is not None:
            invalid("gate_rank", "needs a gate", "use gate: silu, or remove it")
        if not isinstance(self.position, NoPosition | Rotary):
            invalid("position", f"{self.position.kind} positions need attention scores", "use rotary, or none")
        if isinstance(self.position, Rotary):
            self.position.check_kept_keys("{kind} scaling would change keys that are already in the memory")
        return self

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("kind", "linear attention is causal", "use it in a decoder")
        if self.head_dim is None and width % self.num_heads:
            invalid("num_heads", f"{self.num_heads} does not divide d_model {width}", "use a divisor, or set head_dim")
        if isinstance(self.position, Rotary):
            size, turned = self.key_size(width), self.position.dim or self.key_size(width)
            if turned % 2 or turned > size:
                invalid("position", f"{turned} features of a head of {size} cannot be rotated in pairs", "use fewer")
            self.position.scaling.check(turned)

    def key_size(self, width: int) -> int:
        return self.head_dim or width // self.num_heads

    def value_size(self, width: int) -> int:
        return self.v_head_dim or self.key_size(width)

    def widths(self, width: int) -> dict[str, int]:
        """Return the widths of the projections to queries, keys and values; without keys if the decay gives them."""
        keys = self.num_heads * self.key_size(width)
        gives_keys = isinstance(self.decay, ChannelDecay) and self.decay.gives_keys
        return {"q": keys} | ({} if gives_keys else {"k": keys}) | {"v": self.num_heads * self.value_size(width)}
