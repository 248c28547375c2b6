"""Transplants of vectors of n-grams: rows of other widths, and older positions of the convolution."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.ngram.spec import NgramEmbedding, NgramMemory
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", NgramEmbedding)
class NgramEmbeddingTransplant(Transplant[NgramEmbedding]):
    """Wider rows begin with projections of zero; other tables have rows of other n-grams."""

    layouts: ClassVar = {"table": "M P", "projections": "R D P"}
    fields: ClassVar = {"M": "total_rows", "P": "row_width", "R": "num_rows"}
    writes: ClassVar = ("projections",)


@provides("transplant", NgramMemory)
class NgramMemoryTransplant(Transplant[NgramMemory]):
    layouts: ClassVar = {"table": "M P", "key.weight": "SD RP", "value.weight": "D RP", "conv.weight": "SD 1 W"}
    fields: ClassVar = {"M": "total_rows", "P": "row_width", "R": "num_rows", "W": "conv_kernel", "S": "num_streams"}
    writes: ClassVar = ("value.weight",)
    silent: ClassVar = {"key.weight": "DP"}
    fixed: ClassVar = {
        "D": "the gate is divided by the root of the number of features", "S": "other residual streams",
    }  # fmt: skip
    sized: ClassVar = ("multiple",)

    def inside(self, part: NgramMemory) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        ends = [""] if part.num_streams == 1 else [f".{stream}" for stream in range(part.num_streams)]
        return {f"{name}_norm{end}": (part.norm, {"N": "D"}) for name in ("key", "query", "conv") for end in ends}

    def fold(self, at: Transfer[NgramMemory]) -> None:
        at.promise(Start.CHANGED, "the gains of the preceding norm cannot be folded into a norm")
