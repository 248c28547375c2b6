"""Learned index of blocks of keys: each query attends to the blocks with the largest scores, and to its own."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import DEPENDS_ON_LENGTH, Rotary
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.roles.selection import KeySelection
from archetype.spec.base import Flag, NotNegative, Size
from archetype.spec.errors import invalid, refuse_set
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

__all__ = ["BlockIndex"]


@part
class BlockIndex(KeySelection):
    """The `top_blocks` blocks of keys with the largest pooled scores q_t k_s for each query t (MiniMax M3).

    The last `local_blocks` blocks, the query's own included, are always among them. Each of `num_heads` query heads
    selects for its share of the attention's heads; the single key head and all queries come from x. The score of a
    block is the largest score of its visible keys, or the mean, which is the score of their mean (MoBA; Lu 2025). Ties
    go to the earlier block. With `own_projections: false` the rotated queries and keys of the attention itself select:
    with `pooling: mean`, each of its heads reads the blocks whose mean key fits its query best (MoBA). The index then
    has no parameters, no state and no loss.

    The selection has no gradient. The index is trained as the lightning index is (DeepSeek-AI 2025), by blocks: by
    KL(p_t || softmax of the scores / sqrt(P)) over the selected blocks, where p_t are the attention weights of its
    heads, summed over a block. If no block is left out, the index is trained next to dense attention.

    Attributes:
        block: keys of a block.
        top_blocks: number of blocks that a query attends to.
        num_heads: query heads H, each with its own selection: 1, or the key/value heads of the attention.
        head_dim: width of each head, P.
        local_blocks: number of blocks up to the query's own that are always selected.
        pooling: score of a block: max or mean of the scores of its keys.
        position: rotary embedding of queries and keys (absent: none).
        norm: norm of queries and keys, each with its own weights.
        loss_weight: weight of the index's loss (0: the index is not trained).
        own_projections: whether the index has queries and keys of its own, not those of the attention.
    """

    title: ClassVar[str] = "Block index"
    letters: ClassVar[Mapping[str, str]] = {
        "H": "heads of the index",
        "P": "features of a head of the index",
        "W": "keys of the selected blocks",
    }
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
            cause = "the attention's own queries and keys select"
            refuse_set({"position": self.position is not None}, cause, "use {field}: null")
            refuse_set({"norm": not self.norm.is_absent}, cause, "use {field}: none")
            refuse_set({"loss_weight": self.loss_weight > 0}, cause, "use {field}: 0")
        if self.position is not None:
            self.position.check_heads(self.head_dim)
            self.position.check_kept_keys(DEPENDS_ON_LENGTH)
        return self

    def sees_all(self, length: int) -> bool:
        return self.top_blocks * self.block >= length

    @property
    def adds_to_loss(self) -> bool:
        return self.loss_weight > 0

    @property
    def reads_heads(self) -> bool:
        return not self.own_projections

    def check_heads(self, sizes: AttentionSizes) -> None:
        if not self.own_projections:
            for name, size in (("num_heads", sizes.num_heads), ("head_dim", sizes.head_dim)):
                if (own := getattr(self, name)) != size:
                    invalid(name, f"{own} differs from {size} of the attention, which selects", f"use {size}")

    @property
    def num_selections(self) -> int:
        return self.num_heads

    @property
    def sizes(self) -> AttentionSizes:
        rotary_dim = 0 if self.position is None else self.position.dim or self.head_dim
        return AttentionSizes(self.num_heads, 1, self.head_dim, rotary_dim)
