"""Transplants of compressed attention: wider vectors, and the gains of the norm before it."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.compressed_attention.spec import CompressedAttention
from archetype.spec.registry import provides


@provides("transplant", CompressedAttention)
class CompressedAttentionTransplant(Transplant[CompressedAttention]):
    layouts: ClassVar[Mapping[str, str]] = {
        "sinks": "H", "q_down.weight": "R D", "q_norm.weight": "R", "q_up.weight": "HP R", "kv.weight": "P D",
        "kv_norm.weight": "P", "o_down.weight": "G S", "o_up.weight": "D G",
        "pool.kv.weight": "W D", "pool.gate.weight": "W D", "pool.offsets": "T W", "pool.norm.weight": "P",
        "index.q.weight": "JI R", "index.weights.weight": "J D", "index.pool.kv.weight": "U D",
        "index.pool.gate.weight": "U D", "index.pool.offsets": "T U", "index.pool.norm.weight": "I",
    }  # fmt: skip
    writes: ClassVar = ("o_up.weight",)

    def sizes(self, part: CompressedAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        pooling = part.pooling
        index = None if pooling is None else pooling.index
        halves = 2 if pooling is not None and pooling.overlap else 1
        return {
            **sizes, "H": part.num_heads, "P": part.head_dim, "R": part.query_rank, "G": part.groups * part.group_rank,
            "S": part.num_heads * part.head_dim // part.groups, "W": halves * part.head_dim,
            "T": 0 if pooling is None else pooling.rate, "J": 0 if index is None else index.num_heads,
            "I": 0 if index is None else index.head_dim, "U": 0 if index is None else halves * index.head_dim,
        }  # fmt: skip

    def fixed(self, part: CompressedAttention) -> Mapping[str, str]:
        return dict.fromkeys("HPRGSWTJIU", "its heads and pooled keys have other sizes")
