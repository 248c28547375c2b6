"""Learned index of pools: each query attends to the pools whose pooled key fits best, and to the newest keys."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import DEPENDS_ON_LENGTH, Rotary
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.roles.selection import KeySelection
from archetype.spec.base import Flag, NotNegative, Size
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

__all__ = ["PoolIndex"]


@part
class PoolIndex(KeySelection):
    """The `top_pools` pools of `pool` keys with the largest scores sum_h w_h relu(q_h k) (Qwen4-Exp; GLM-5.3-Flash).

    The key k of a pool is the mean of its positions' keys, then normalized and rotated by its first position. Only
    pools that end at or before the query compete. The keys behind the last of them, fewer than `pool`, are always
    attended to. Ties go to the earlier pool. Keys come from x, and queries from what the attention's queries come from.
    The weights w_h are 1, or projected from x. With `pooling: gated` each feature has weights of its own, a softmax
    over the positions of a pool of a projection of x and a learned number for the place in the pool.

    The selection has no gradient. The index is trained as the lightning index is (DeepSeek-AI 2025), by pools: by
    KL(p_t || softmax of the scores) over the selected pools, where p_t are the attention weights of all heads, summed
    over a pool. If no pool is left out, the index is trained next to dense attention.

    Attributes:
        pool: keys of a pool.
        top_pools: number of pools that a query attends to.
        num_heads: query heads of the index, H.
        head_dim: width of each head, P.
        position: rotary embedding of queries and pooled keys (absent: none).
        norm: norm of queries and pooled keys, each with its own weights, or only of keys.
        norm_of: what is normalized: queries and pooled keys, or the keys before they are pooled.
        pooling: how the keys of a pool become one: their mean, or weights of each feature.
        head_weights: whether the scores of each head have a weight that is projected from x.
        loss_weight: weight of the index's loss (0: the index is not trained).
    """

    title: ClassVar[str] = "Pool index"
    letters: ClassVar[Mapping[str, str]] = {
        "H": "heads of the index",
        "P": "features of a head of the index",
        "W": "keys of the selected pools",
    }
    kind: Literal["pools"] = "pools"
    pool: Size
    top_pools: Size
    num_heads: Heads
    head_dim: HeadWidth
    position: Rotary | None = None
    norm: VectorNorm = RMSNorm()
    norm_of: Literal["pools", "keys"] = "pools"
    pooling: Literal["mean", "gated"] = "mean"
    head_weights: Flag = False
    loss_weight: NotNegative = 1.0

    @model_validator(mode="after")
    def _sizes_fit(self) -> "PoolIndex":
        if self.position is not None:
            self.position.check_heads(self.head_dim)
            self.position.check_kept_keys(DEPENDS_ON_LENGTH)
        return self

    def sees_all(self, length: int) -> bool:
        return length // self.pool <= self.top_pools

    @property
    def key_features(self) -> int:
        """Numbers that are kept of each position: its key, and with gates the logits of its weights."""
        return self.head_dim * (2 if self.pooling == "gated" else 1)

    @property
    def adds_to_loss(self) -> bool:
        return self.loss_weight > 0

    @property
    def sizes(self) -> AttentionSizes:
        rotary_dim = 0 if self.position is None else self.position.dim or self.head_dim
        return AttentionSizes(self.num_heads, 1, self.head_dim, rotary_dim)
