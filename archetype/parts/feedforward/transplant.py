"""Transplants of feed-forward networks: hidden features are added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import Any, ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.spec.registry import provides


@provides("transplant", MLP, GatedMLP)
class FeedForwardTransplant(Transplant[Any]):
    layouts: ClassVar[Mapping[str, str]] = {
        "gate.weight": "F D", "up.weight": "F D", "down.weight": "D F",
        "gate.bias": "F", "up.bias": "F", "down.bias": "D", "hidden_norm.weight": "F",
    }  # fmt: skip
    writes: ClassVar = ("down.weight", "down.bias")

    def sizes(self, part: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "F": part.width(sizes["D"])}

    def start(self, at: Transfer[Any]) -> tuple[Start, str]:
        if at.old.replace(d_ff=at.new.d_ff) != at.new:
            return super().start(at)
        is_normed = not at.new.hidden_norm.is_absent
        return (Start.CHANGED, "the hidden norm sees other features") if is_normed else (Start.SAME, "")
