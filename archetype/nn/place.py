"""Position of a module in its model, passed to its constructor together with its specification."""

from dataclasses import dataclass

from archetype.roles.residual import Residual


@dataclass(frozen=True)
class Place:
    """Position of a block, or of one of its sublayers, in the model.

    Attributes:
        d_model: features of its input and output vectors, D.
        layer: index of its layer in the stack.
        num_layers: number of layers in the stack, L.
        causal: whether no position may depend on a later one.
        content: index among all sublayers of the stack, for a residual wiring.
        residual: residual wiring of the stack (None: plain addition).
        vocab_size: vocabulary size of the stack's tokens, V (0: it reads vectors, not tokens).
        experts_per_token: experts chosen for each token, k, for a router.
    """

    d_model: int
    layer: int = 0
    num_layers: int = 1
    causal: bool = True
    content: int = 0
    residual: Residual | None = None
    vocab_size: int = 0
    experts_per_token: int = 1
