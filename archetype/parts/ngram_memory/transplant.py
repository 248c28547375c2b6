"""Transplants of n-gram memories: rows of other widths, and older positions of the convolution."""

from typing import ClassVar

from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.ngram_memory.spec import NgramMemory
from archetype.spec.registry import provides


@provides("transplant", NgramMemory)
class NgramMemoryTransplant(Transplant[NgramMemory]):
    layouts: ClassVar = {"table": "M P", "key.weight": "D RP", "value.weight": "D RP", "conv.weight": "D 1 W"}
    fields: ClassVar = {"M": "total_rows", "P": "row_width", "R": "num_rows", "W": "conv_kernel"}
    norms: ClassVar = dict.fromkeys(("key_norm", "query_norm", "conv_norm"), ("norm", "D"))
    writes: ClassVar = ("value.weight",)
    silent: ClassVar = {"key.weight": "DP"}
    fixed: ClassVar = {"D": "the gate is divided by the root of the number of features"}
    sized: ClassVar = ("multiple",)

    def fold(self, at: Transfer[NgramMemory]) -> None:
        at.promise(Start.CHANGED, "the gains of the norm before it cannot be folded into a norm")
