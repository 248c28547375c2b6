"""Gated short convolutions: mixers that see only a few tokens."""

from typing import Literal

from archetype.roles.mixer import Mixer
from archetype.spec.base import Flag, Size
from archetype.spec.kinds import part


@part
class ShortConvolution(Mixer):
    """out(c * conv(b * x)) with [b, c, x] = in(u), over the latest `conv_kernel` tokens (Liquid AI 2025, LFM2).

    Attributes:
        conv_kernel: kernel size of the convolution in positions.
        bias: whether the projections and the convolution have a bias.
    """

    kind: Literal["short_convolution"] = "short_convolution"
    conv_kernel: Size = 3
    bias: Flag = False
