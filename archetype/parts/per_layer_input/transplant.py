"""Transplants of per-layer inputs: features added, whose output is zero, or removed."""

from typing import ClassVar

from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.spec.registry import provides


@provides("transplant", PerLayerInput)
class PerLayerInputTransplant(Transplant[PerLayerInput]):
    layouts: ClassVar = {"gate.weight": "F D", "down.weight": "D F"}
    fields: ClassVar = {"F": "features"}
    writes: ClassVar = ("down.weight",)

    def fold(self, at: Transfer[PerLayerInput]) -> None:
        if at.old.input_norm.is_absent:
            super().fold(at)
        else:
            at.promise(Start.CHANGED, "the gains of the preceding norm cannot be folded into a norm")
