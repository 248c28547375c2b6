"""Transplants of RWKV-4: features added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.rwkv4.spec import RWKV4
from archetype.spec.registry import provides


@provides("transplant", RWKV4)
class RWKV4Transplant(Transplant[RWKV4]):
    layouts: ClassVar = {
        **dict.fromkeys(("r.weight", "k.weight", "v.weight"), "I D"), "o.weight": "D I", "decay": "I", "bonus": "I",
        **dict.fromkeys(("mix_r", "mix_k", "mix_v"), "D"),
    }  # fmt: skip
    writes: ClassVar = ("o.weight",)
    sized: ClassVar = ("width",)

    def sizes(self, part: RWKV4, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "I": part.width or sizes["D"]}
