"""Transplants of feed-forward networks: hidden features are added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from archetype.nn.inspect import PartTrace
from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.convolutions.transplant import begin_convolutions
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.spec.registry import provides


@provides("transplant", MLP, GatedMLP)
class FeedForwardTransplant(Transplant[Any]):
    layouts: ClassVar[Mapping[str, str]] = {
        "gate.weight": "F D", "up.weight": "F D", "down.weight": "D F",
        "gate.bias": "F", "up.bias": "F", "down.bias": "D", "hidden_norm.weight": "F", "hidden_norm.bias": "F",
        "convolutions.input.weight": "D 1 W", "convolutions.output.weight": "D 1 W",
    }  # fmt: skip
    writes: ClassVar = ("down.weight", "down.bias")
    newest_last: ClassVar = "W"

    def layouts_of(self, part: Any) -> Mapping[str, str]:
        hidden = "2F 1 W" if isinstance(part, GatedMLP) else "F 1 W"
        return {**self.layouts, "convolutions.hidden.weight": hidden}

    def sizes(self, part: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        kernel = 0 if part.convolutions is None else part.convolutions.kernel
        return {**sizes, "F": part.width(sizes["D"]), "W": kernel}

    def importance(self, part: Any, trace: PartTrace) -> Mapping[str, Tensor]:
        """Mean square of what each feature adds to the output (Sun 2023, Wanda; summed over the output's features)."""
        squares = trace.activations["hidden"].flatten(0, -2).square().sum(0)
        return {"F": squares * trace.module.down.weight.square().sum(0)}

    def transfer(self, at: Transfer[Any]) -> None:
        begin_convolutions(at)
        super().transfer(at)
        if self.sizes(at.old, at.old_sizes)["F"] != self.sizes(at.new, at.new_sizes)["F"]:
            # both read all hidden features
            if not at.new.hidden_norm.is_absent:
                at.promise(Start.CHANGED, "the hidden norm sees other features")
            if not at.new.activation.is_fixed:
                at.promise(Start.CHANGED, "the activation may see other features")

    def start(self, at: Transfer[Any]) -> tuple[Start, str]:
        return (Start.SAME, "") if at.old.replace(d_ff=at.new.d_ff) == at.new else super().start(at)
