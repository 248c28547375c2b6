"""Transplants of tables of positions."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.position.spec import RelativeBias
from archetype.spec.registry import provides


@provides("transplant", RelativeBias)
class RelativeBiasTransplant(Transplant[RelativeBias]):
    """A table begins with biases of zero where the donor has no positions."""

    layouts: ClassVar[Mapping[str, str]] = {"weight": "B H"}
    writes: ClassVar = ("weight",)
    sized: ClassVar = ("num_buckets",)

    def sizes(self, part: RelativeBias, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "B": part.num_buckets}

    def fixed(self, part: RelativeBias) -> Mapping[str, str]:
        return {"B": "buckets hold other distances"}
