"""Transplants of a learned index of blocks: its own weights, or those of attention."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import IndexTransplant, Rows
from archetype.parts.block_index.spec import BlockIndex
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", BlockIndex)
class BlockIndexTransplant(IndexTransplant[BlockIndex]):
    layouts: ClassVar[Mapping[str, str]] = {
        "q.weight": "HP D", "k.weight": "P D",
    }  # fmt: skip
    sized: ClassVar = ("num_heads", "head_dim", "loss_weight")

    def sizes(self, part: BlockIndex, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "H": part.num_heads, "P": part.head_dim}

    def inside(self, part: BlockIndex) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return dict.fromkeys(("q_norm", "k_norm") if part.own_projections else (), (part.norm, {"N": "P"}))

    def fixed(self, part: BlockIndex) -> Mapping[str, str]:
        return dict.fromkeys("HP", "the index has other heads")

    def rows(self, part: BlockIndex, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        return {"q": Rows("q", part.num_heads, part.head_dim), "k": Rows("k", 1, part.head_dim)}
