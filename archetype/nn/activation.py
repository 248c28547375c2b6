"""Nonlinearities, by name."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from torch import Tensor, nn, sigmoid, tanh

from archetype import spec


def activation(choice: spec.Activation) -> Callable[[Tensor], Tensor]:
    """The elementwise function that a specification names."""
    match choice:
        case "relu":
            return nn.functional.relu
        case "gelu":  # x Phi(x), exact (Hendrycks 2016)
            return nn.functional.gelu
        case "gelu_tanh":  # the tanh approximation, as GPT-2 has it
            return partial(nn.functional.gelu, approximate="tanh")
        case "silu":
            return nn.functional.silu
        case "tanh":
            return tanh
        case "sigmoid":
            return sigmoid
        case "relu2":  # max(x, 0)^2 (So 2021)
            return _squared
        case spec.Swish(beta=beta):
            return partial(_swish, beta)
        case _:
            assert_never(choice)


def _squared(x: Tensor) -> Tensor:
    return nn.functional.relu(x).square()


def _swish(beta: float, x: Tensor) -> Tensor:
    return x * sigmoid(beta * x)
