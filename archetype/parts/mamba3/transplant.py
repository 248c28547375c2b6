"""Transplants of Mamba-3: heads added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.mamba3.spec import Mamba3
from archetype.parts.norm.spec import RMSNorm
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", Mamba3)
class Mamba3Transplant(Transplant[Mamba3]):
    layouts: ClassVar = {
        "in_proj.weight": "HP|HP|rKZ|rKZ|3H|A D", "dt_bias": "H", "D": "H", "norm.weight": "HP",
        "b_bias": "H r Z", "c_bias": "H r Z", "mimo_x": "H r P", "mimo_z": "H r P", "mimo_o": "H r P",
        "out_proj.weight": "D HP",
    }  # fmt: skip
    fields: ClassVar = {
        "H": "num_heads", "P": "head_dim", "K": "num_groups", "Z": "state_size", "r": "rank", "A": "angles",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight",)
    sized: ClassVar = ("rotary_dim",)

    def sizes(self, part: Mamba3, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "G": part.num_heads // part.num_groups}

    def inside(self, part: Mamba3) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return dict.fromkeys(("b_norm", "c_norm"), (RMSNorm(eps=part.eps), {"N": "Z"}))

    def fixed_in(self, part: Mamba3) -> Mapping[str, str]:
        fixed = {
            "Z": "b and c are normalized over other states", "r": "other vectors are written", "A": "other states turn",
            "G": "heads belong to different groups",
        }  # fmt: skip
        return fixed | ({"P": "the norm covers different features of a head"} if part.norm else {})
