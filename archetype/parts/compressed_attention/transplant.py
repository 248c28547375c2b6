"""Transplants of compressed attention: heads, groups and ranks added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.compressed_attention.spec import CompressedAttention
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", CompressedAttention)
class CompressedAttentionTransplant(Transplant[CompressedAttention]):
    # heads are B of each of g groups, and the projection of a pooling has a half for each of o windows
    layouts: ClassVar[Mapping[str, str]] = {
        "q_down.weight": "r D", "q_up.weight": "gBP r", "kv.weight": "P D", "sinks": "gB", "o_down.weight": "gA BP",
        "o_up.weight": "D gA", "pool.kv.weight": "oP D", "pool.gate.weight": "oP D", "pool.offsets": "s oP",
        "index.q.weight": "IJ r", "index.weights.weight": "I D", "index.pool.kv.weight": "oJ D",
        "index.pool.gate.weight": "oJ D", "index.pool.offsets": "s oJ",
    }  # fmt: skip
    writes: ClassVar = ("o_up.weight",)
    silent: ClassVar[Mapping[str, str]] = {"q_down.weight": "r", "o_down.weight": "B"}
    sized: ClassVar = ("num_heads", "groups", "group_rank", "query_rank")

    def sizes(self, part: CompressedAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        pooling, index = part.pooling, part.index
        return {
            **sizes, "P": part.head_dim, "g": part.groups, "B": part.num_heads // part.groups, "A": part.group_rank,
            "r": part.query_rank, "s": 0 if pooling is None else pooling.rate,
            "o": 0 if pooling is None else 1 + pooling.overlap, "I": 0 if index is None else index.num_heads,
            "J": 0 if index is None else index.head_dim,
        }  # fmt: skip

    def inside(self, part: CompressedAttention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        features = {"q_norm": "r", "kv_norm": "P", "pool.norm": "P", "index.pool.norm": "J"}
        norms: dict[str, tuple[Spec, Mapping[str, str]]] = {
            name: (part.norm, {"N": letter}) for name, letter in features.items()
        }
        return {**norms, "query_norm": (part.query_norm, {"N": "P"})}

    def fixed(self, part: CompressedAttention) -> Mapping[str, str]:
        return {
            "P": "scores and norms of other features", "s": "other windows are pooled", "o": "other windows are pooled",
            "I": "the index has other heads", "J": "the index has other heads",
        }  # fmt: skip
