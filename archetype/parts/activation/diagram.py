"""How an activation is called in a box."""

from archetype.parts.activation.spec import Activation

NAMES = {
    "relu": "ReLU", "relu2": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU", "silu": "SiLU", "tanh": "tanh",
    "sigmoid": "sigmoid",
}  # fmt: skip


def activation_name(activation: Activation) -> str:
    """GELU for gelu."""
    name = activation if isinstance(activation, str) else activation.kind
    return NAMES.get(name, name)
