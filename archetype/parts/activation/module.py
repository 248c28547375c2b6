"""Nonlinearities, by name."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn, sigmoid, tanh

from archetype.parts.activation import spec


def activation(choice: spec.Activation) -> Callable[[Tensor], Tensor]:
    """The elementwise function that a specification names."""
    return partial(_swish, choice.beta) if isinstance(choice, spec.Swish) else FUNCTIONS[choice]


def _squared(x: Tensor) -> Tensor:
    return nn.functional.relu(x).square()


def _swish(beta: float, x: Tensor) -> Tensor:
    return x * sigmoid(beta * x)


FUNCTIONS: dict[spec.ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,  # x Phi(x), exact (Hendrycks 2016)
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),  # as GPT-2 has it
    "silu": nn.functional.silu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "relu2": _squared,  # max(x, 0)^2 (So 2021)
}
