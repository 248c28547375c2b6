"""The part of a block that works on each position alone: called with the vectors and the ForwardContext."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec
from archetype.nn.activation import activation
from archetype.nn.context import ForwardContext
from archetype.nn.linear import Linear
from archetype.nn.registry import module_for


@module_for(spec.MLP)
class MLP(nn.Module):
    """down(f(up(x))) (Vaswani 2017, equation 2)."""

    def __init__(self, feedforward: spec.MLP, d_model: int) -> None:
        super().__init__()
        d_ff = feedforward.width(d_model)
        self.up = Linear(d_model, d_ff, bias=feedforward.bias)
        self.down = Linear(d_ff, d_model, bias=feedforward.bias)
        self.activation = activation(feedforward.activation)

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext) -> Float[Tensor, "... D"]:
        y: Tensor = self.down(self.activation(self.up(x)))
        return y


@module_for(spec.GatedMLP)
class GatedMLP(nn.Module):
    """down(f(gate(x)) * up(x)) (Shazeer 2020, equation 6)."""

    def __init__(self, feedforward: spec.GatedMLP, d_model: int) -> None:
        super().__init__()
        d_ff = feedforward.width(d_model)
        self.gate = Linear(d_model, d_ff, bias=feedforward.bias)
        self.up = Linear(d_model, d_ff, bias=feedforward.bias)
        self.down = Linear(d_ff, d_model, bias=feedforward.bias)
        self.product = gated_product(feedforward)

    def forward(self, x: Float[Tensor, "... D"], context: ForwardContext) -> Float[Tensor, "... D"]:
        y: Tensor = self.down(self.product(self.gate(x), self.up(x)))
        return y


def gated_product(feedforward: spec.GatedMLP) -> Callable[[Tensor, Tensor], Tensor]:
    """f(gate) * up: with a limit both are clamped before, with a unit offset it is f(gate) * (1 + up) (gpt-oss)."""
    return partial(_gated, activation(feedforward.activation), feedforward.limit, feedforward.unit_offset)


def _gated(f: Callable[[Tensor], Tensor], limit: float | None, unit_offset: bool, gate: Tensor, up: Tensor) -> Tensor:
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return f(gate) * (1 + up if unit_offset else up)
