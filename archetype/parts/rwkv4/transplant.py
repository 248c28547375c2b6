"""Transplants of RWKV-4: features added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.rwkv4.spec import RWKV4
from archetype.spec.registry import provides


@provides("transplant", RWKV4)
class RWKV4Transplant(Transplant[RWKV4]):
    layouts: ClassVar[Mapping[str, str]] = {
        "r.weight": "I D", "k.weight": "I D", "v.weight": "I D", "o.weight": "D I", "mix_r": "D", "mix_k": "D",
        "mix_v": "D", "decay": "I", "bonus": "I",
    }  # fmt: skip
    writes: ClassVar = ("o.weight",)
    sized: ClassVar = ("width", "chunk_size")

    def sizes(self, part: RWKV4, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "I": part.width or sizes["D"]}
