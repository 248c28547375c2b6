"""Transplants of Mamba: channels, states and ranks added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.mamba.spec import Mamba
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", Mamba)
class MambaTransplant(Transplant[Mamba]):
    layouts: ClassVar[Mapping[str, str]] = {
        "in_proj.weight": "2I D", "in_proj.bias": "2I", "conv.weight": "I 1 W", "conv.bias": "I",
        "x_proj.weight": "r|Z|Y I", "dt_proj.weight": "I r", "dt_proj.bias": "I", "A_log": "I Z", "D": "I",
        "out_proj.weight": "D I", "out_proj.bias": "D",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
    # steps, inputs and outputs do not see new channels, and nothing reads the new states Y
    silent: ClassVar[Mapping[str, str]] = {"x_proj.weight": "IrY", "conv.weight": "W"}
    newest_last: ClassVar = "W"
    twins: ClassVar[Mapping[str, str]] = {"Y": "Z"}
    sized: ClassVar = (
        "expand", "state_size", "conv_kernel", "dt_rank", "conv_bias", "bias", "dt_min", "dt_max",
    )  # fmt: skip

    def sizes(self, part: Mamba, sizes: Mapping[str, int]) -> Mapping[str, int]:
        states = part.state_size
        return {
            **sizes, "I": part.expand * sizes["D"], "Z": states, "Y": states, "r": part.rank(sizes["D"]),
            "W": part.conv_kernel,
        }  # fmt: skip

    def inside(self, part: Mamba) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {f"{name}_norm": (part.norm, {"N": letter}) for name, letter in {"dt": "r", "b": "Z", "c": "Y"}.items()}

    def fixed(self, part: Mamba) -> Mapping[str, str]:
        return {} if part.norm.is_absent else {"Z": "the norm of B sees other states"}
