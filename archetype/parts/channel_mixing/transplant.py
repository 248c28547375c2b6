"""Transplants of channel mixing: hidden features added, whose output is zero, or removed."""

from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.spec.registry import provides


@provides("transplant", ChannelMixing)
class ChannelMixingTransplant(Transplant[ChannelMixing]):
    layouts: ClassVar = {
        "mix": "D", "mix_receptance": "D", "up.weight": "F D", "down.weight": "D F", "receptance.weight": "D D",
    }  # fmt: skip
    fields: ClassVar = {"F": "d_ff"}
    writes: ClassVar = ("down.weight",)
