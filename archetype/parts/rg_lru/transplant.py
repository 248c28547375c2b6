"""Transplants of RG-LRU: features added to each head, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.rg_lru.spec import RGLRU
from archetype.spec.registry import provides


@provides("transplant", RGLRU)
class RGLRUTransplant(Transplant[RGLRU]):
    layouts: ClassVar[Mapping[str, str]] = {
        "x.weight": "HP D", "x.bias": "HP", "gate.weight": "HP D", "gate.bias": "HP", "conv.weight": "HP 1 W",
        "conv.bias": "HP", "input_gate.weight": "H Q P", "input_gate.bias": "H P", "decay_gate.weight": "H Q P",
        "decay_gate.bias": "H P", "rate": "HP", "o.weight": "D HP", "o.bias": "D",
    }  # fmt: skip
    writes: ClassVar = ("o.weight", "o.bias")
    # gates do not see new features Q
    silent: ClassVar[Mapping[str, str]] = {"input_gate.weight": "Q", "decay_gate.weight": "Q", "conv.weight": "W"}
    newest_last: ClassVar = "W"
    twins: ClassVar[Mapping[str, str]] = {"Q": "P"}
    sized: ClassVar = ("num_heads", "width", "conv_kernel", "chunk_size")

    def sizes(self, part: RGLRU, sizes: Mapping[str, int]) -> Mapping[str, int]:
        features = part.inner(sizes["D"]) // part.num_heads
        return {**sizes, "H": part.num_heads, "P": features, "Q": features, "W": part.conv_kernel}
