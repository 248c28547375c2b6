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
    layouts: ClassVar[Mapping[str, str]] = {
        "in_proj.weight": "HP|HP|rKZ|rKZ|3H|A D", "dt_bias": "H", "D": "H", "b_bias": "H r Z", "c_bias": "H r Z",
        "mimo_x": "H r P", "mimo_z": "H r P", "mimo_o": "H r P", "norm.weight": "HP", "out_proj.weight": "D HP",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight",)
    sized: ClassVar = (
        "num_heads", "head_dim", "state_size", "num_groups", "rank", "rotary_dim", "chunk_size", "dt_min", "dt_max",
    )  # fmt: skip

    def sizes(self, part: Mamba3, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {
            **sizes, "H": part.num_heads, "P": part.head_dim, "K": part.num_groups, "Z": part.state_size,
            "r": part.rank, "A": part.angles, "G": part.num_heads // part.num_groups,
        }  # fmt: skip

    def inside(self, part: Mamba3) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return dict.fromkeys(("b_norm", "c_norm"), (RMSNorm(eps=part.eps), {"N": "Z"}))

    def fixed(self, part: Mamba3) -> Mapping[str, str]:
        fixed = {
            "Z": "the norms of b and c see other states", "r": "a step writes other vectors", "A": "other states turn",
            "G": "heads read other groups",
        }  # fmt: skip
        return fixed | ({"P": "the norm sees other features of a head"} if part.norm else {})
