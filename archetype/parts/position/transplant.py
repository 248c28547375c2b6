"""Transplants of tables of positions."""

from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.position.spec import RelativeBias
from archetype.spec.registry import provides


@provides("transplant", RelativeBias)
class RelativeBiasTransplant(Transplant[RelativeBias]):
    """A table begins with biases of zero where the donor has no positions."""

    layouts: ClassVar = {"weight": "B H"}
    fields: ClassVar = {"B": "num_buckets"}
    writes: ClassVar = ("weight",)
    fixed: ClassVar = {"B": "buckets hold different distances"}
