"""Transplants of mLSTM: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, Rows, plain_heads
from archetype.parts.mlstm.spec import MLSTM
from archetype.spec.registry import provides


@provides("transplant", MLSTM)
class MLSTMTransplant(HeadsTransplant[MLSTM]):
    layouts: ClassVar[Mapping[str, str]] = {
        "q.weight": "HP D", "k.weight": "HP D", "v.weight": "HQ D", "gate.weight": "HQ D", "o.weight": "D HQ",
        "q.bias": "HP", "k.bias": "HP", "v.bias": "HQ", "gate.bias": "HQ", "o.bias": "D",
        "input_gate.weight": "H D", "input_gate.bias": "H", "forget_gate.weight": "H D", "forget_gate.bias": "H",
        "norm.weight": "HQ", "norm.bias": "HQ",
    }  # fmt: skip
    writes: ClassVar = ("o.weight", "o.bias")
    sized: ClassVar = ("num_heads", "head_dim", "v_head_dim", "bias", "chunk_size")

    def sizes(self, part: MLSTM, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "H": part.num_heads, "P": part.key_size(sizes["D"]), "Q": part.value_size(sizes["D"])}

    def fixed(self, part: MLSTM) -> Mapping[str, str]:
        return {"P": "queries and keys have other features", "Q": "the norm sees other features of a head"}

    def heads(self, part: MLSTM, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        return replace(plain_heads(tensors, part.num_heads, part.num_heads), o_bias=tensors.get("o.bias"))

    def rows(self, part: MLSTM, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        keys, values = ((part.num_heads, size(sizes["D"])) for size in (part.key_size, part.value_size))
        return {"q": Rows("q", *keys), "k": Rows("k", *keys), "v": Rows("v", *values), "o": Rows("o", *values)}
