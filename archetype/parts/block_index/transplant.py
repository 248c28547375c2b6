"""Transplants of a learned index of blocks, from another index or from attention."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import IndexTransplant
from archetype.parts.block_index.spec import BlockIndex
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", BlockIndex)
class BlockIndexTransplant(IndexTransplant[BlockIndex]):
    layouts: ClassVar = {"q.weight": "HP D", "k.weight": "P D"}
    norms: ClassVar = dict.fromkeys(("q_norm", "k_norm"), ("norm", "P"))

    def inside(self, part: BlockIndex) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return super().inside(part) if part.own_projections else {}
