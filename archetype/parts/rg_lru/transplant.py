"""Transplants of RG-LRU: features added to each head, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.rg_lru.spec import RGLRU
from archetype.spec.registry import provides


@provides("transplant", RGLRU)
class RGLRUTransplant(Transplant[RGLRU]):
    layouts: ClassVar = {
        "x.weight": "HP D", "gate.weight": "HP D", "conv.weight": "HP 1 W", "rate": "HP", "o.weight": "D HP",
        "input_gate.weight": "H Q P", "input_gate.bias": "H P", "decay_gate.weight": "H Q P", "decay_gate.bias": "H P",
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads", "W": "conv_kernel"}
    writes: ClassVar = ("o.weight", "o.bias")
    silent: ClassVar = {"input_gate.weight": "Q", "decay_gate.weight": "Q"}  # gates do not see new features Q
    twins: ClassVar = {"Q": "P"}
    sized: ClassVar = ("width",)

    def sizes(self, part: RGLRU, sizes: Mapping[str, int]) -> Mapping[str, int]:
        features = part.inner(sizes["D"]) // part.num_heads
        return {**super().sizes(part, sizes), "P": features, "Q": features}
