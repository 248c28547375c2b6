"""Transplants of disentangled attention, whose heads have all features of the model."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.disentangled_attention.spec import DisentangledAttention, RelativeVectors
from archetype.spec.registry import provides


@provides("transplant", DisentangledAttention)
class DisentangledAttentionTransplant(Transplant[DisentangledAttention]):
    layouts: ClassVar = {
        **{f"{name}.weight": "HP D" for name in ("q", "k", "v", "position_k", "position_q")}, "o.weight": "D HP",
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads"}
    writes: ClassVar = ("o.weight", "o.bias")
    fixed: ClassVar = {"P": "the scale of scores changes with the number of features"}

    def fold(self, at: Transfer[DisentangledAttention]) -> None:
        at.promise(Start.CHANGED, "the preceding norm's gains do not apply to relative positions")

    def sizes(self, part: DisentangledAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "P": sizes["D"] // part.num_heads}


@provides("transplant", RelativeVectors)
class RelativeVectorsTransplant(Transplant[RelativeVectors]):
    layouts: ClassVar = {"weight": "2B D"}
    fields: ClassVar = {"B": "num_buckets"}
    norms: ClassVar = {"norm": ("norm", "D")}
    writes: ClassVar = ("weight",)
