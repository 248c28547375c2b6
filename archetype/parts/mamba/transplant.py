"""Transplants of Mamba: channels, states and ranks added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.mamba.spec import Mamba
from archetype.spec.registry import provides


@provides("transplant", Mamba)
class MambaTransplant(Transplant[Mamba]):
    layouts: ClassVar = {
        "in_proj.weight": "2I D", "conv.weight": "I 1 W", "x_proj.weight": "r|Z|Y I", "dt_proj.weight": "I r",
        "A_log": "I Z", "D": "I", "out_proj.weight": "D I",
    }  # fmt: skip
    fields: ClassVar = {"Z": "state_size", "Y": "state_size", "r": "rank", "W": "conv_kernel"}
    norms: ClassVar = {f"{name}_norm": ("norm", letter) for name, letter in {"dt": "r", "b": "Z", "c": "Y"}.items()}
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
    # steps, inputs and outputs do not see new channels, and nothing reads the new states Y
    silent: ClassVar = {"x_proj.weight": "IrY"}
    twins: ClassVar = {"Y": "Z"}
    sized: ClassVar = ("expand", "dt_rank")

    def sizes(self, part: Mamba, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "I": part.expand * sizes["D"]}

    def fixed_in(self, part: Mamba) -> Mapping[str, str]:
        return {} if part.norm.is_absent else {"Z": "the norm of B covers different states"}
