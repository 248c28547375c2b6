"""Learned index of blocks of keys: each query attends to the blocks with the largest scores, and to its own."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.lightning_index.spec import LearnedIndex
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Flag, NotNegative, Size
from archetype.spec.errors import invalid, refuse_set
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth


@part
class BlockIndex(LearnedIndex):
    """The `top_blocks` blocks of keys with the largest pooled scores q_t k_s for each query t (MiniMax M3).

    The last `local_blocks` blocks, including the query's own, are always selected. Each of the `num_heads` index heads
    selects for a group of attention heads; its queries and the single key head are projected from x. The score of a
    block is the maximum score of its visible keys, or the mean score, which equals the score of the mean key (MoBA; Lu
    2025). Ties go to the earlier block. With `own_projections: false`, the index uses attention's rotated queries and
    keys; with `pooling: mean`, each head then reads the blocks whose mean key scores highest (MoBA). Such an index has
    no parameters, state or loss.

    The selection has no gradient. As in the lightning index (DeepSeek-AI 2025), the training loss is KL(p_t ||
    softmax(scores / sqrt(P))) over the selected blocks, where p_t are the attention weights of the group's heads,
    summed over each block. If all blocks are selected, the index is trained alongside dense attention.

    Attributes:
        block: number of keys per block.
        top_blocks: number of blocks that a query attends to.
        num_heads: query heads H, each with its own selection: 1, or the number of attention's key/value heads.
        head_dim: width of each head, P.
        local_blocks: number of always selected blocks up to and including the query's own.
        pooling: score of a block: max or mean of the scores of its keys.
        position: rotary embedding of queries and keys (absent: none).
        norm: norm of queries and keys, each with its own weights.
        loss_weight: weight of the index's loss (0: the index is not trained).
        own_projections: whether the index projects its own queries and keys instead of using attention's.
    """

    title: ClassVar[str] = "Block index"
    letters: ClassVar[Mapping[str, str]] = {**LearnedIndex.letters, "W": "keys of the selected blocks"}
    kind: Literal["blocks"] = "blocks"
    block: Size
    top_blocks: Size
    num_heads: Heads
    head_dim: HeadWidth
    local_blocks: Size = 1
    pooling: Literal["max", "mean"] = "max"
    position: Rotary | None = None
    norm: VectorNorm = RMSNorm()
    loss_weight: NotNegative = 1.0
    own_projections: Flag = True

    @model_validator(mode="after")
    def _sizes_fit(self) -> "BlockIndex":
        if self.local_blocks > self.top_blocks:
            cause = f"{self.local_blocks} is more than top_blocks {self.top_blocks}"
            invalid("local_blocks", cause, f"use at most {self.top_blocks}")
        if not self.own_projections:
            cause = "attention's queries and keys select"
            refuse_set({"position": self.position is not None}, cause, "use {field}: null")
            refuse_set({"norm": not self.norm.is_absent}, cause, "use {field}: none")
            refuse_set({"loss_weight": self.loss_weight > 0}, cause, "use {field}: 0")
        return self

    @property
    def most_keys(self) -> int:
        return self.top_blocks * self.block

    @property
    def key_features(self) -> int:
        return self.head_dim if self.own_projections else 0

    @property
    def reads_heads(self) -> bool:
        return not self.own_projections

    def check_heads(self, sizes: AttentionSizes) -> None:
        if not self.own_projections:
            for name, size in (("num_heads", sizes.num_heads), ("head_dim", sizes.head_dim)):
                if (own := getattr(self, name)) != size:
                    invalid(name, f"{own} differs from attention's {size}", f"use {size}")

    @property
    def num_selections(self) -> int:
        return self.num_heads
