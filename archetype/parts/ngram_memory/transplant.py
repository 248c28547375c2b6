"""Transplants of n-gram memories: rows of other widths, and older positions of the convolution."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.ngram_memory.spec import NgramMemory
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", NgramMemory)
class NgramMemoryTransplant(Transplant[NgramMemory]):
    layouts: ClassVar[Mapping[str, str]] = {
        "table": "M P", "key.weight": "D RP", "value.weight": "D RP", "conv.weight": "D 1 W",
    }  # fmt: skip
    writes: ClassVar = ("value.weight",)
    silent: ClassVar[Mapping[str, str]] = {"key.weight": "DP", "conv.weight": "W"}
    newest_last: ClassVar = "W"
    sized: ClassVar = ("row_width", "conv_kernel", "multiple")

    def fold(self, at: Transfer[NgramMemory]) -> None:
        at.promise(Start.CHANGED, "the gains of the norm before it cannot be folded into a norm")

    def sizes(self, part: NgramMemory, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {
            **sizes, "M": part.total_rows, "P": part.row_width, "R": part.num_rows, "W": part.conv_kernel,
        }  # fmt: skip

    def inside(self, part: NgramMemory) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {f"{name}_norm": (part.norm, {"N": "D"}) for name in ("key", "query", "conv")}

    def fixed(self, part: NgramMemory) -> Mapping[str, str]:
        return {"D": "the gate is divided by the root of the number of features"}
