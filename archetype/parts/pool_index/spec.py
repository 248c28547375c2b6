"""Learned index of pools: each query attends to the pools whose pooled key fits best, and to the newest keys."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from archetype.parts.lightning_index.spec import LearnedIndex
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.norm import VectorNorm
from archetype.spec.base import Flag, NotNegative, Size
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth


@part
class PoolIndex(LearnedIndex):
    """The `top_pools` pools of `pool` keys with the largest scores sum_h w_h relu(q_h k) (Qwen4-Exp; GLM-5.3-Flash).

    The key k of a pool is the mean of its keys, normalized and then rotated by the pool's first position. Only pools
    that end at or before the query can be selected. The keys after the last complete pool, fewer than `pool`, are
    always attended to. Ties go to the earlier pool. Keys are projected from x, and queries from the same vector as
    attention's queries. The weights w_h are 1, or projected from x. With `pooling: gated`, the mean is weighted per
    feature, by a softmax over the pool's positions of a projection of x plus a learned bias for each position in the
    pool.

    The selection has no gradient. As in the lightning index (DeepSeek-AI 2025), the training loss is KL(p_t ||
    softmax(scores)) over the selected pools, where p_t are the attention weights of all heads, summed over each pool.
    If all pools are selected, the index is trained alongside dense attention.

    Attributes:
        pool: number of keys per pool.
        top_pools: number of pools that a query attends to.
        num_heads: query heads of the index, H.
        head_dim: width of each head, P.
        position: rotary embedding of queries and pooled keys (absent: none).
        norm: norm of queries and pooled keys, each with its own weights, or of keys only.
        norm_of: `pools` normalizes queries and pooled keys; `keys`, the keys before pooling.
        pooling: `mean` of the pool's keys, or `gated`, a mean with learned weights for each feature.
        head_weights: whether each head's scores are multiplied by a weight projected from x.
        loss_weight: weight of the index's loss (0: the index is not trained).
    """

    title: ClassVar[str] = "Pool index"
    letters: ClassVar[Mapping[str, str]] = {**LearnedIndex.letters, "W": "keys of the selected pools"}
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

    @property
    def most_keys(self) -> int:
        # of the selected pools, and those that are in no complete pool
        return (self.top_pools + 1) * self.pool - 1

    @property
    def key_features(self) -> int:
        # with gates also the logits of a key's weights
        return self.head_dim * (2 if self.pooling == "gated" else 1)
