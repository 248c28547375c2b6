"""Transplants of per-layer inputs: features added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.spec.registry import provides


@provides("transplant", PerLayerInput)
class PerLayerInputTransplant(Transplant[PerLayerInput]):
    layouts: ClassVar[Mapping[str, str]] = {"gate.weight": "F D", "down.weight": "D F"}
    writes: ClassVar = ("down.weight",)
    sized: ClassVar = ("features",)

    def sizes(self, part: PerLayerInput, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "F": part.features}
