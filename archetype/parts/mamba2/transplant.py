"""Transplants of Mamba-2: states and heads added, and queries, keys and values of another mixer as C, B and x."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import HeadsTransplant
from archetype.parts.mamba2.spec import Mamba2
from archetype.spec.registry import provides


@provides("transplant", Mamba2)
class Mamba2Transplant(HeadsTransplant[Mamba2]):
    """C, B and x are the queries, keys and values of linear attention (Dao 2024; Wang 2024, The Mamba in the Llama)."""

    # in_proj has the gate, x, B, C and the steps
    layouts: ClassVar = {
        "in_proj.weight": "HP|HP|KZ|KY|H D", "conv.weight": "HP|KZ|KY 1 W", "dt_bias": "H", "A_log": "H", "D": "H",
        "norm.weight": "HP", "out_proj.weight": "D HP",
    }  # fmt: skip
    matrices: ClassVar = {"q": ("in_proj", 3), "k": ("in_proj", 2), "v": ("in_proj", 1), "o": ("out_proj", 0)}
    fields: ClassVar = {
        "H": "num_heads", "P": "head_dim", "K": "num_groups", "Z": "state_size", "Y": "state_size", "W": "conv_kernel",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
    # nothing reads the new states Y by C
    silent: ClassVar = {"in_proj.weight": "Y", "conv.bias": "Y"}
    twins: ClassVar = {"Y": "Z"}

    def sizes(self, part: Mamba2, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "G": part.num_heads // part.num_groups}

    def fixed_in(self, part: Mamba2) -> Mapping[str, str]:
        fixed = {"G": "heads belong to different groups"}
        return fixed | dict.fromkeys("HP", "the norm covers different features") if part.has_norm else fixed
