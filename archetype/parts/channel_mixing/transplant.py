"""Transplants of channel mixing: hidden features added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.spec.registry import provides


@provides("transplant", ChannelMixing)
class ChannelMixingTransplant(Transplant[ChannelMixing]):
    layouts: ClassVar[Mapping[str, str]] = {
        "mix": "D", "mix_receptance": "D", "up.weight": "F D", "down.weight": "D F", "receptance.weight": "D D",
    }  # fmt: skip
    writes: ClassVar = ("down.weight",)
    sized: ClassVar = ("d_ff",)

    def sizes(self, part: ChannelMixing, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "F": part.d_ff}
