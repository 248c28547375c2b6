"""Transplants of compressed attention: heads, groups and ranks added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.compressed_attention.spec import CompressedAttention
from archetype.spec.registry import provides


@provides("transplant", CompressedAttention)
class CompressedAttentionTransplant(Transplant[CompressedAttention]):
    # heads are B of each of g groups, and the projection of a pooling has a half for each of o windows
    layouts: ClassVar = {
        "q_down.weight": "r D", "q_up.weight": "gBP r", "kv.weight": "P D", "sinks": "gB", "o_down.weight": "gA BP",
        "o_up.weight": "D gA", "pool.kv.weight": "oP D", "pool.gate.weight": "oP D", "pool.offsets": "s oP",
        "index.q.weight": "IJ r", "index.weights.weight": "I D", "index.pool.kv.weight": "oJ D",
        "index.pool.gate.weight": "oJ D", "index.pool.offsets": "s oJ",
    }  # fmt: skip
    fields: ClassVar = {"P": "head_dim", "g": "groups", "A": "group_rank", "r": "query_rank"}
    norms: ClassVar = {
        "q_norm": ("norm", "r"), "kv_norm": ("norm", "P"), "pool.norm": ("norm", "P"), "index.pool.norm": ("norm", "J"),
        "query_norm": ("query_norm", "P"),
    }  # fmt: skip
    writes: ClassVar = ("o_up.weight",)
    silent: ClassVar = {"q_down.weight": "r", "o_down.weight": "B"}
    fixed: ClassVar = {
        "P": "scores and norms cover different features", **dict.fromkeys("so", "different windows are pooled"),
        **dict.fromkeys("IJ", "the index has different heads"),
    }  # fmt: skip
    sized: ClassVar = ("num_heads",)

    def sizes(self, part: CompressedAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        pooling, index = part.pooling, part.index
        return {
            **super().sizes(part, sizes), "B": part.num_heads // part.groups,
            "s": 0 if pooling is None else pooling.rate, "o": 0 if pooling is None else 1 + pooling.overlap,
            "I": 0 if index is None else index.num_heads, "J": 0 if index is None else index.head_dim,
        }  # fmt: skip
