"""Transplants of a learned index of keys, from another index or from attention."""

from typing import ClassVar

from archetype.nn.heads import IndexTransplant
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.spec.registry import provides


@provides("transplant", LightningIndex)
class LightningIndexTransplant(IndexTransplant[LightningIndex]):
    layouts: ClassVar = {"q.weight": "HP R", "k.weight": "P D", "weights.weight": "H D"}
    norms: ClassVar = {"k_norm": ("norm", "P")}
