"""Transplants of a learned index of keys: its own weights, or those of attention."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import IndexTransplant, Rows
from archetype.nn.transplant import FOLDED, Transfer
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", LightningIndex)
class LightningIndexTransplant(IndexTransplant[LightningIndex]):
    layouts: ClassVar[Mapping[str, str]] = {
        "q.weight": "HP R", "k.weight": "P D", "weights.weight": "H D",
    }  # fmt: skip
    sized: ClassVar = ("num_heads", "head_dim", "loss_weight")

    def sizes(self, part: LightningIndex, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "H": part.num_heads, "P": part.head_dim}

    def fold(self, at: Transfer[LightningIndex]) -> None:
        super().fold(at)
        if at.old_sizes["X"] and "q.weight" in at.donated:  # queries from the input, and not of low rank
            assert at.gains is not None
            at.compute("q.weight", at.donated["q.weight"] * at.gains, FOLDED)

    def inside(self, part: LightningIndex) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {"k_norm": (part.norm, {"N": "P"})}

    def fixed(self, part: LightningIndex) -> Mapping[str, str]:
        return dict.fromkeys("HP", "the index has other heads")

    def rows(self, part: LightningIndex, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        return {"q": Rows("q", part.num_heads, part.head_dim), "k": Rows("k", 1, part.head_dim)}
