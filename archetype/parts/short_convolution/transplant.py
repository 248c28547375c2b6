"""Transplants of gated short convolutions: features added, whose output is zero, and older positions."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.spec.registry import provides


@provides("transplant", ShortConvolution)
class ShortConvolutionTransplant(Transplant[ShortConvolution]):
    layouts: ClassVar[Mapping[str, str]] = {
        "in_proj.weight": "3D D", "in_proj.bias": "3D", "conv.weight": "D 1 W", "conv.bias": "D",
        "out_proj.weight": "D D", "out_proj.bias": "D",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
    silent: ClassVar[Mapping[str, str]] = {"conv.weight": "W"}
    newest_last: ClassVar = "W"
    sized: ClassVar = ("conv_kernel", "bias")

    def sizes(self, part: ShortConvolution, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "W": part.conv_kernel}
