"""Functions that compute the activations, and modules of those with parameters."""

from collections.abc import Callable
from functools import partial
from math import expm1, log
from statistics import NormalDist
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn, sigmoid, tanh

from archetype.errors import SpecError
from archetype.parts.activation import spec
from archetype.roles.activation import Activation
from archetype.spec.registry import provided, provides

Function = Callable[[Tensor], Tensor]


def activation(choice: Activation) -> Function:
    """Return the elementwise function of an activation.

    Raises:
        SpecError: no function is registered for its kind.
    """
    if (make := provided("module", type(choice))) is not None:
        return cast(Function, make(choice))
    cause = f"no function is registered for {type(choice).__name__}"
    raise SpecError("activation", cause, "register a function: archetype.register(SPEC, module=FUNCTION)")


def gelu_tanh(x: Tensor) -> Tensor:
    return nn.functional.gelu(x, approximate="tanh")


def _same(x: Tensor) -> Tensor:
    return x


def _squared(x: Tensor) -> Tensor:
    return nn.functional.relu(x).square()


def _swish(beta: float, x: Tensor) -> Tensor:
    return x * sigmoid(beta * x)


@provides("module", spec.Swish)
def swish(choice: spec.Swish) -> Function:
    return partial(_swish, choice.beta)


def soft_capped(bound: float, x: Tensor) -> Tensor:
    """Return bound * tanh(x / bound)."""
    return bound * tanh(x / bound)


def _situ(beta: float, x: Tensor) -> Tensor:
    return soft_capped(beta, x) * sigmoid(x)


@provides("module", spec.SiTU)
def situ(choice: spec.SiTU) -> Function:
    return partial(_situ, choice.beta)


class XIELUFunction(torch.autograd.Function):
    """xIELU that saves only its input. Autograd would save four tensors of that size."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, a: Tensor, c: Tensor, b: Tensor, eps: Tensor) -> Tensor:
        return torch.where(x > 0, a * x * x + b * x, (torch.expm1(torch.min(x, eps)) - x) * c + b * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, a, c, b, eps = ctx.saved_tensors
        below = torch.min(x, eps)
        # the derivative of min(x, eps) is 0 between eps and 0
        slope = torch.where(x < eps, torch.exp(below), 0.0) - 1
        dx = dy * (torch.where(x > 0, 2 * a * x, slope * c) + b)
        da = torch.where(x > 0, dy * x * x, 0.0).sum().reshape(a.shape)
        dc = torch.where(x > 0, 0.0, dy * (torch.expm1(below) - x)).sum().reshape(c.shape)
        return dx, da.to(a.dtype), dc.to(c.dtype), None, None


@provides("module", spec.XIELU)
class XIELU(nn.Module):
    """xIELU (Huang 2024), in the form and with the tensors of Apertus."""

    constant_buffers: ClassVar = ("beta", "eps")  # of the checkpoint; training does not update them
    # both slopes begin at 0.8, the second including beta
    initial_values: ClassVar = {"alpha_p": log(expm1(0.8)), "alpha_n": log(expm1(0.3)), "beta": 0.5, "eps": -1e-6}
    beta: Tensor
    eps: Tensor

    def __init__(self, choice: spec.XIELU) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.register_buffer("beta", torch.empty(()))
        self.register_buffer("eps", torch.empty(()))

    def forward(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "... F"]:
        a, b, eps = nn.functional.softplus(self.alpha_p), self.beta, self.eps
        c = b + nn.functional.softplus(self.alpha_n)
        return XIELUFunction.apply(x, *(number.to(x.dtype) for number in (a, c, b, eps)))  # type: ignore[no-untyped-call]


@provides("module", spec.PolyNorm)
class PolyNorm(nn.Module):
    """Weighted sum of the normed powers of x (Zhuo 2024, equation 6)."""

    parameter_roles: ClassVar = {"weight": "vector"}
    initial_values: ClassVar = {"weight": 1 / 3}

    def __init__(self, choice: spec.PolyNorm) -> None:
        super().__init__()
        self.eps = choice.eps
        self.weight, self.bias = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(1))

    def forward(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "... F"]:
        square, exact = x * x, torch.promote_types(x.dtype, torch.float32)
        y = self.bias.to(x.dtype)
        # the norm's factor is multiplied by the weight first, so that no normed vectors are stored
        for power, weight in zip((square * x, square, x), self.weight, strict=True):
            size = (power.square().mean(-1, keepdim=True, dtype=exact) + self.eps).rsqrt()
            y = y + power * (weight * size).to(x.dtype)
        return y


@provides("module", spec.GaussianTopK)
class GaussianTopK(nn.Module):
    """f(max(x - c, 0)) with c = mean + z std of all features."""

    def __init__(self, choice: spec.GaussianTopK) -> None:
        super().__init__()
        self.z = NormalDist().inv_cdf(choice.share)
        self.activation = activation(choice.activation)

    def forward(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "... F"]:
        cutoff = x.mean(-1, keepdim=True) + self.z * x.std(-1, correction=0, keepdim=True)
        return self.activation(nn.functional.relu(x - cutoff))


def _computed_by(function: Function, kind: type[Activation]) -> None:
    # a kind without fields: every instance computes the same function
    def make(choice: Activation) -> Function:
        return function

    provides("module", kind)(make)


_computed_by(_same, spec.NoActivation)
_computed_by(nn.functional.relu, spec.ReLU)
_computed_by(nn.functional.gelu, spec.GELU)
_computed_by(gelu_tanh, spec.GELUTanh)
_computed_by(nn.functional.silu, spec.SiLU)
_computed_by(tanh, spec.Tanh)
_computed_by(sigmoid, spec.Sigmoid)
_computed_by(_squared, spec.ReLU2)
