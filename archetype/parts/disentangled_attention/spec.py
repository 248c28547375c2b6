"""Disentangled attention: separate vectors for the content of a token and for relative positions."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.parts.norm.spec import NoNorm
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Flag, Length, Probability, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads


class RelativeVectors(Spec):
    """Embeddings of relative positions, shared by all layers of a stack.

    Distances below half of `num_buckets` have a bucket each; longer distances share buckets that grow logarithmically
    up to `max_distance` (He 2021, DeBERTa v3). Without `max_distance` each distance has a bucket, and the last bucket
    also holds all longer distances.

    Attributes:
        num_buckets: buckets per direction, S; the table has 2 S vectors.
        max_distance: distance at which the last bucket begins (absent: one distance per bucket).
        norm: norm of the table's vectors.
    """

    num_buckets: Size
    max_distance: Length | None = None
    norm: VectorNorm = NoNorm()

    @model_validator(mode="after")
    def _buckets_reach(self) -> Self:
        least = self.num_buckets // 2 + 1
        if self.max_distance is not None and not (self.num_buckets > 1 and least < self.max_distance):
            cause = f"{self.max_distance} leaves no distances for the logarithmic buckets"
            invalid("max_distance", cause, f"use more than {least}, and at least 2 buckets")
        return self


@part
class DisentangledAttention(Mixer):
    """softmax(scale (q k^T + q r_k^T + r_q k^T)) v, with r_k and r_q for relative positions (He 2020, equation 4).

    The scale is 1 / sqrt(n P), with n the number of terms in the score. Each position attends to the whole sequence.

    Attributes:
        num_heads: heads, H.
        vectors: embeddings of relative positions.
        content_to_position: whether scores include q r_k^T.
        position_to_content: whether scores include r_q k^T.
        own_projections: whether relative positions have separate projections instead of sharing those of tokens.
        key_bias: whether the key projections of tokens and relative positions have a bias (He 2021, not He 2020).
        dropout: dropout probability of the attention weights in training.
    """

    letters: ClassVar[Mapping[str, str]] = {"S": "buckets of distances in each direction"}
    title: ClassVar[str] = "Disentangled attention"
    sees_later: ClassVar[bool] = True
    kind: Literal["disentangled_attention"] = "disentangled_attention"
    num_heads: Heads
    vectors: RelativeVectors
    content_to_position: Flag = True
    position_to_content: Flag = True
    own_projections: Flag = False
    key_bias: Flag = True
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _distances_are_read(self) -> Self:
        if not (self.content_to_position or self.position_to_content):
            invalid("content_to_position", "no score uses relative positions", "use attention")
        return self

    @property
    def num_products(self) -> int:
        return 1 + self.content_to_position + self.position_to_content

    @property
    def stack_bias(self) -> tuple[RelativeVectors, int]:
        return self.vectors, self.num_heads

    def attention_sizes(self, width: int) -> AttentionSizes:
        return AttentionSizes(self.num_heads, self.num_heads, width // self.num_heads, 0)

    def check(self, width: int, causal: bool) -> None:
        if width % self.num_heads:
            invalid("num_heads", f"{self.num_heads} does not divide d_model {width}", "use a divisor of d_model")
        if causal:
            invalid("", "positions attend to later ones, which a decoder cannot", "use attention, or an encoder")
