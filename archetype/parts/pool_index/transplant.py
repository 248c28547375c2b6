"""Transplants of a learned index of pools, from another index or from attention."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import IndexTransplant
from archetype.parts.pool_index.spec import PoolIndex
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", PoolIndex)
class PoolIndexTransplant(IndexTransplant[PoolIndex]):
    layouts: ClassVar = {
        "q.weight": "HP R", "k.weight": "P D", "weights.weight": "H D", "pool_gate.weight": "P D", "pool_bias": "L P",
    }  # fmt: skip
    fields: ClassVar = {**IndexTransplant.fields, "L": "pool"}
    norms: ClassVar = dict.fromkeys(("q_norm", "k_norm"), ("norm", "P"))

    def inside(self, part: PoolIndex) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        norms = super().inside(part)
        return norms if part.norm_of == "pools" else {"k_norm": norms["k_norm"]}
