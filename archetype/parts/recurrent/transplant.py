"""Transplants of recurrent mixers: add features that stay zero, or remove features."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from archetype.nn.transplant import Transplant
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.spec.registry import provides

GATES: dict[type, int] = {RNN: 1, LSTM: 4, GRU: 3}
SHAPES = {"weight_ih": "gh D", "weight_hh": "gh h", "bias_ih": "gh", "bias_hh": "gh"}


@provides("transplant", RNN, LSTM, GRU)
class RecurrentTransplant(Transplant[Any]):
    """Transplants of recurrent cells: a new feature with zero weights stays zero for any gates, and can learn."""

    layouts: ClassVar = {
        f"cell.{name}_{end}": layout for end in ("l0", "l0_reverse") for name, layout in SHAPES.items()
    }
    silent: ClassVar[Mapping[str, str]] = dict.fromkeys(layouts, "h")

    def silence(self, part: Any, module: nn.Module) -> Sequence[str]:
        for parameter in module.parameters():
            parameter.zero_()
        return [name for name, _ in module.named_parameters()]

    def sizes(self, part: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "g": GATES[type(part)], "h": sizes["D"] // (2 if part.bidirectional else 1)}

    def fixed_in(self, part: Any) -> Mapping[str, str]:
        return {"h": "the two directions are at different positions in the output"} if part.bidirectional else {}
