"""Functions that compute the activations."""

from collections.abc import Callable
from functools import partial
from typing import cast

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
