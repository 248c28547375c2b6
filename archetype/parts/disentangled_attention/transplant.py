"""Transplants of disentangled attention, whose heads have all features of the model."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.disentangled_attention.spec import DisentangledAttention, RelativeVectors
from archetype.spec.base import Spec
from archetype.spec.registry import provides

MATRICES = ("q", "k", "v", "position_k", "position_q")


@provides("transplant", DisentangledAttention)
class DisentangledAttentionTransplant(Transplant[DisentangledAttention]):
    layouts: ClassVar[Mapping[str, str]] = {
        **{f"{name}.weight": "HP D" for name in MATRICES}, **{f"{name}.bias": "HP" for name in MATRICES},
        "o.weight": "D HP", "o.bias": "D",
    }  # fmt: skip
    writes: ClassVar = ("o.weight", "o.bias")
    sized: ClassVar = ("num_heads", "dropout")

    def fold(self, at: Transfer[DisentangledAttention]) -> None:
        at.promise(Start.CHANGED, "the gains of the norm before it are not those of vectors of distances")

    def sizes(self, part: DisentangledAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "H": part.num_heads, "P": sizes["D"] // part.num_heads}

    def fixed(self, part: DisentangledAttention) -> Mapping[str, str]:
        return {"P": "scores of other features have another scale"}


@provides("transplant", RelativeVectors)
class RelativeVectorsTransplant(Transplant[RelativeVectors]):
    layouts: ClassVar[Mapping[str, str]] = {"weight": "2B D"}
    writes: ClassVar = ("weight",)

    def sizes(self, part: RelativeVectors, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "B": part.num_buckets}

    def inside(self, part: RelativeVectors) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {"norm": (part.norm, {"N": "D"})}
