"""Transplants of a learned index of keys: its own weights, or those of attention."""

from typing import ClassVar

from archetype.nn.heads import IndexTransplant
from archetype.nn.transfer import FOLDED, Transfer
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.spec.registry import provides


@provides("transplant", LightningIndex)
class LightningIndexTransplant(IndexTransplant[LightningIndex]):
    layouts: ClassVar = {"q.weight": "HP R", "k.weight": "P D", "weights.weight": "H D"}
    norms: ClassVar = {"k_norm": ("norm", "P")}

    def fold(self, at: Transfer[LightningIndex]) -> None:
        super().fold(at)
        if at.old_sizes["X"] and "q.weight" in at.donated:  # queries from the input, and not of low rank
            assert at.gains is not None
            at.compute("q.weight", at.donated["q.weight"] * at.gains, FOLDED)
