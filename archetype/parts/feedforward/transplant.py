"""Transplants of feed-forward networks: hidden features are added, whose output is zero, or removed."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from archetype.nn.inspect import PartTrace
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.convolutions.transplant import begin_convolutions
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.spec.registry import provides


@provides("transplant", MLP, GatedMLP)
class FeedForwardTransplant(Transplant[Any]):
    layouts: ClassVar = {
        "gate.weight": "F D", "up.weight": "F D", "down.weight": "D F", "hidden_norm.weight": "F",
        "gate_gain.weight": "F", "up_gain.weight": "F",
        "convolutions.input.weight": "D 1 W", "convolutions.output.weight": "D 1 W",
    }  # fmt: skip
    fields: ClassVar = {"F": "width"}
    writes: ClassVar = ("down.weight", "down.bias")
    sized: ClassVar = ("d_ff",)

    def layouts_of(self, part: Any) -> Mapping[str, str]:
        return {"convolutions.hidden.weight": "2F 1 W" if isinstance(part, GatedMLP) else "F 1 W"}

    def sizes(self, part: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "W": part.convolutions.kernel if part.convolutions else 0}

    def importance(self, part: Any, trace: PartTrace) -> Mapping[str, Tensor]:
        """Mean square of what each feature adds to the output (Sun 2023, Wanda; summed over the output's features)."""
        squares = trace.activations["hidden"].flatten(0, -2).square().sum(0)
        return {"F": squares * trace.module.down.weight.square().sum(0)}

    def transfer(self, at: Transfer[Any]) -> None:
        begin_convolutions(at)
        super().transfer(at)
        if self.sizes(at.old, at.old_sizes)["F"] != self.sizes(at.new, at.new_sizes)["F"]:
            # both read all hidden features
            at.require(at.new.hidden_norm.is_absent, "the hidden norm covers different features")
            at.require(at.new.activation.is_fixed, "the activation may depend on other features")
