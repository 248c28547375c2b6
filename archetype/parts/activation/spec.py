"""The nonlinearities of the feed-forward part."""

from typing import Literal

from archetype.spec.base import Positive, Spec

__all__ = ["Activation", "ActivationName", "Swish"]

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu2"]


class Swish(Spec):
    """x * sigmoid(beta * x) (Ramachandran 2017); beta = 1 is `silu`.

    Attributes:
        beta: steepness; 1 is `silu`.
    """

    kind: Literal["swish"] = "swish"
    beta: Positive


Activation = ActivationName | Swish
