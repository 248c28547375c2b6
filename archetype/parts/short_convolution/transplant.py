"""Transplants of gated short convolutions: features added, whose output is zero, and older positions."""

from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.spec.registry import provides


@provides("transplant", ShortConvolution)
class ShortConvolutionTransplant(Transplant[ShortConvolution]):
    layouts: ClassVar = {"in_proj.weight": "3D D", "conv.weight": "D 1 W", "out_proj.weight": "D D"}
    fields: ClassVar = {"W": "conv_kernel"}
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
