"""Mixers that look at other positions."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from archetype.spec.base import Flag, Positive, Probability, Size, Spec, fault
from archetype.spec.position import MixerPosition, NoPosition, Rotary


class ProjectionBiases(Spec):
    """Which of the four projections add a bias."""

    q: Flag = False
    k: Flag = False
    v: Flag = False
    o: Flag = False


def _all_alike(value: Any) -> Any:
    return dict.fromkeys("qkvo", value) if isinstance(value, bool) else value


def _shortest(value: ProjectionBiases) -> Any:
    flags = {value.q, value.k, value.v, value.o}
    return flags.pop() if len(flags) == 1 else value.dump()


Biases = Annotated[
    ProjectionBiases,
    BeforeValidator(_all_alike, json_schema_input_type=bool | ProjectionBiases),
    PlainSerializer(_shortest),
]


class AttentionSizes(NamedTuple):
    """The sizes of one attention, with all defaults filled in."""

    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # P
    rotary_dim: int  # R, zero without rotary positions


class Attention(Spec):
    """softmax(scale * q k^T) v, then a projection; K key/value heads serve H query heads.

    K = H is multi-head (Vaswani 2017), K = 1 multi-query (Shazeer 2019), between them grouped-query attention
    (Ainslie 2023): query head h reads key/value head floor(h K / H). Absent: `num_kv_heads` is `num_heads`,
    `head_dim` is d_model / num_heads, `scale` is 1 / sqrt(head_dim). `dropout` falls on the weights.
    """

    kind: Literal["attention"] = "attention"
    num_heads: Size
    num_kv_heads: Size | None = None
    head_dim: Size | None = None
    bias: Biases = ProjectionBiases()
    scale: Positive | None = None
    position: MixerPosition = NoPosition()
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _heads_divide(self) -> "Attention":
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            valid = [str(k) for k in range(1, self.num_heads + 1) if self.num_heads % k == 0]
            cause = f"{self.num_kv_heads} does not divide num_heads {self.num_heads}"
            fault("num_kv_heads", cause, f"use {' or '.join(filter(None, [', '.join(valid[:-1]), valid[-1]]))}")
        if self.head_dim is not None:
            self._rotation_fits(self.head_dim)
        return self

    def _rotation_fits(self, head_dim: int) -> None:
        if not isinstance(self.position, Rotary):
            return
        if self.position.dim is None and head_dim % 2:
            fault("head_dim", f"{head_dim} features cannot be paired for rotary positions", "use an even head_dim")
        if self.position.dim is not None and self.position.dim > head_dim:
            fault("position.dim", f"{self.position.dim} is more than head_dim {head_dim}", f"use at most {head_dim}")

    def fits(self, d_model: int) -> None:
        """Check, inside a validator, what depends on the model's width."""
        if self.head_dim is None:
            if d_model % self.num_heads:
                cause = f"{self.num_heads} does not divide d_model {d_model}"
                divisors = [h for h in range(1, d_model + 1) if d_model % h == 0]
                near = sorted(sorted(divisors, key=lambda h: abs(h - self.num_heads))[:3])
                fault("num_heads", cause, f"use {', '.join(map(str, near))} or give head_dim")
            self._rotation_fits(d_model // self.num_heads)

    def sizes(self, d_model: int) -> AttentionSizes:
        """All sizes, for a model of width `d_model`."""
        head_dim = self.head_dim or d_model // self.num_heads
        rotary_dim = (self.position.dim or head_dim) if isinstance(self.position, Rotary) else 0
        return AttentionSizes(self.num_heads, self.num_kv_heads or self.num_heads, head_dim, rotary_dim)

    @property
    def keys_follow_length(self) -> bool:
        """Whether a key's rotation changes as the request grows, so that it cannot be stored rotated."""
        return isinstance(self.position, Rotary) and self.position.scaling.kind == "dynamic"


# The contents that mix positions. Later: LatentAttention, RNN, LSTM, GRU, Mamba.
Mixer = Annotated[Attention, Field()]
