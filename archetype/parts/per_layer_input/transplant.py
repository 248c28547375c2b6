"""Transplants of per-layer inputs: features added, whose output is zero, or removed."""

from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.spec.registry import provides


@provides("transplant", PerLayerInput)
class PerLayerInputTransplant(Transplant[PerLayerInput]):
    layouts: ClassVar = {"gate.weight": "F D", "down.weight": "D F"}
    fields: ClassVar = {"F": "features"}
    writes: ClassVar = ("down.weight",)
