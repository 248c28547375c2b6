"""Transplants of mLSTM: heads added, and queries, keys and values of another mixer."""

from typing import ClassVar

from archetype.nn.heads import HeadsTransplant
from archetype.parts.mlstm.spec import MLSTM
from archetype.spec.registry import provides


@provides("transplant", MLSTM)
class MLSTMTransplant(HeadsTransplant[MLSTM]):
    layouts: ClassVar = {
        "q.weight": "HP D", "k.weight": "HP D", "v.weight": "HQ D", "gate.weight": "HQ D", "o.weight": "D HQ",
        "input_gate.weight": "H D", "forget_gate.weight": "H D", "norm.weight": "HQ",
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads", "P": "key_size", "Q": "value_size"}
    writes: ClassVar = ("o.weight", "o.bias")
    fixed: ClassVar = {"P": "queries and keys have other features", "Q": "the norm covers other features of a head"}
    sized: ClassVar = ("head_dim", "v_head_dim")
