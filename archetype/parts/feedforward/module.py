"""Feed-forward networks, applied to each position separately."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.native import fused
from archetype.native.kernels import Kernels
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.activation.module import Function, activation, gelu_tanh, soft_capped
from archetype.parts.convolutions.module import Convolutions, convolving
from archetype.parts.feedforward import spec
from archetype.parts.gain.module import amplified, build_gain
from archetype.weights.linear import Linear


class Convolved(nn.Module):
    """Base class of networks that may have short convolutions, whose newest inputs are their state."""

    convolutions: Convolutions | None

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState | None:
        return None if self.convolutions is None else self.convolutions.new_state(batch, dtype, device)


@module_for(spec.MLP)
class MLP(Convolved):
    """down(f(up(x))) (Vaswani 2017, equation 2)."""

    probes: ClassVar = {"hidden": "... F"}

    def __init__(self, feedforward: spec.MLP, place: Place) -> None:
        super().__init__()
        d_model, d_ff = place.d_model, feedforward.width(place.d_model)
        self.up = Linear(d_model, d_ff, bias=feedforward.has_bias("up"))
        self.down = Linear(d_ff, d_model, bias=feedforward.has_bias("down"))
        self.activation = activation(feedforward.activation)
        self.up_gain = build_gain(feedforward.hidden_gain, d_ff)
        self.hidden_norm = build_norm(feedforward.hidden_norm, d_ff)
        self.convolutions = convolutions(feedforward, d_model, d_ff)
        self.divides = divides(feedforward)

    def forward(
        self, x: Float[Tensor, "... D"], context: ForwardContext, state: LayerState | None = None
    ) -> Float[Tensor, "... D"]:
        convolve = convolving(self.convolutions, state, context)
        up = amplified(self.up_gain, convolve("hidden", self.up(convolve("input", x))))
        hidden = context.probe(self, "hidden", self.activation(up))  # (..., F)
        return convolve("output", self.down(self.hidden_norm(hidden)))


@module_for(spec.GatedMLP)
class GatedMLP(Convolved):
    """down(f(gate(x)) * up(x)) (Shazeer 2020, equation 6)."""

    probes: ClassVar = {"hidden": "... F"}

    def __init__(self, feedforward: spec.GatedMLP, place: Place) -> None:
        super().__init__()
        d_model, d_ff = place.d_model, feedforward.width(place.d_model)
        self.gate = Linear(d_model, d_ff, bias=feedforward.has_bias("gate"))
        self.up = Linear(d_model, d_ff, bias=feedforward.has_bias("up"))
        self.down = Linear(d_ff, d_model, bias=feedforward.has_bias("down"))
        self.gate_gain, self.up_gain = (build_gain(feedforward.hidden_gain, d_ff) for _ in range(2))
        self.hidden_norm = build_norm(feedforward.hidden_norm, d_ff)
        self.convolutions = convolutions(feedforward, d_model, 2 * d_ff)
        self.divides = divides(feedforward)
        function = activation(feedforward.activation)
        self.activation = None if feedforward.activation.is_fixed else function  # a module with parameters
        self.product = gated_product(feedforward, function)

    def forward(
        self, x: Float[Tensor, "... D"], context: ForwardContext, state: LayerState | None = None
    ) -> Float[Tensor, "... D"]:
        convolve = convolving(self.convolutions, state, context)
        x = convolve("input", x)
        gate, up = self.gate(x), self.up(x)  # (..., F) each
        if self.convolutions is not None and "hidden" in self.convolutions:
            gate, up = convolve("hidden", torch.cat((gate, up), dim=-1)).chunk(2, dim=-1)
        gate, up = amplified(self.gate_gain, gate), amplified(self.up_gain, up)
        hidden = context.probe(self, "hidden", self.product(context.kernels, gate, up))  # (..., F)
        return convolve("output", self.down(self.hidden_norm(hidden)))


def convolutions(feedforward: spec.MLP | spec.GatedMLP, d_model: int, hidden: int) -> Convolutions | None:
    """Build the convolutions of a network with `hidden` projected features; None if there are none."""
    widths = {"input": d_model, "hidden": hidden, "output": d_model}
    return None if feedforward.convolutions is None else Convolutions(feedforward.convolutions, widths)


def divides(feedforward: spec.MLP | spec.GatedMLP) -> bool:
    """Return whether processes may each compute some of the hidden features."""
    reads_each_alone = feedforward.hidden_norm.is_absent and feedforward.hidden_gain is None
    return feedforward.activation.is_fixed and reads_each_alone and feedforward.convolutions is None


def gated_product(
    feedforward: spec.GatedMLP, function: Function | None = None
) -> Callable[[Kernels, Tensor, Tensor], Tensor]:
    """Return f(gate) * up, with `function` as f (absent: the function of the specification).

    A limit clamps both first (or f(gate) and up), a bound squeezes up, and a unit offset changes it to
    f(gate) * (1 + up) (gpt-oss).
    """
    choice = feedforward.activation
    if choice.gate_kernel and not feedforward.changes_factors:
        return partial(_gated_product, choice.gate_kernel)
    return partial(_gated, function or activation(choice), feedforward)


def _gated(
    f: Callable[[Tensor], Tensor],
    feedforward: spec.GatedMLP,
    kernels: Kernels,
    gate: Tensor,
    up: Tensor,
) -> Tensor:
    limit, bound = feedforward.limit, feedforward.up_bound
    if limit is not None:
        # the gate only from above, as gpt-oss does: f goes to zero below
        gate, up = gate if feedforward.limit_after else gate.clamp(max=limit), up.clamp(-limit, limit)
    if bound is not None:
        up = soft_capped(bound, up)
    product = f(gate)
    if limit is not None and feedforward.limit_after:
        product = product.clamp(max=limit)
    return product * (1 + up if feedforward.unit_offset else up)


def _gated_product(name: str, kernels: Kernels, gate: Tensor, up: Tensor) -> Tensor:
    # without a backward pass there is nothing to save
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return GatedProduct.forward(gate, up, name, kernels)
    return GatedProduct.apply(gate, up, name, kernels)  # type: ignore[no-untyped-call]


def _silu_backward(dy: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(dy, x)
    s = x.sigmoid()  # torch has no second derivative of its own operation
    return dy * s * (1 + x * (1 - s))


FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": gelu_tanh,
}
DERIVATIVES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {  # of dy and x: dy * f'(x)
    "silu": _silu_backward,
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": partial(torch.ops.aten.gelu_backward, approximate="tanh"),
}


class GatedProduct(torch.autograd.Function):
    """f(gate) * up that saves only its inputs. Autograd would save f(gate) as well, d_ff values per token."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gate: Tensor, up: Tensor, name: str, kernels: Kernels) -> Tensor:
        y = fused.gated(kernels, name, gate, up)
        return FUNCTIONS[name](gate) * up if y is None else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, Kernels], output: Tensor) -> None:
        gate, up, ctx.name, _ = inputs
        ctx.save_for_backward(gate, up)
        ctx.save_for_forward(gate, up)  # for `jvp`

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors
        gradients = fused.gated_backward(ctx.name, dy, gate, up)
        if gradients is None:
            gradients = DERIVATIVES[ctx.name](dy * up, gate), dy * FUNCTIONS[ctx.name](gate)
        return *gradients, None, None

    @staticmethod
    def jvp(ctx: Any, dgate: Tensor, dup: Tensor, *_: None) -> Tensor:
        gate, up = ctx.saved_tensors
        return DERIVATIVES[ctx.name](dgate * up, gate) + FUNCTIONS[ctx.name](gate) * dup
