"""Position of a module in its model, passed to its constructor together with its specification."""

from dataclasses import dataclass

from archetype.roles.residual import Residual


@dataclass(frozen=True)
class Place:
    """Position of a block, or of one of its sublayers, in the model."""

    d_model: int  # features of its input and output vectors, D
    layer: int = 0  # index of its layer in the stack
    num_layers: int = 1  # number of layers in the stack, L
    causal: bool = True  # whether no position may depend on a later one
    content: int = 0  # index among all sublayers of the stack, for a residual wiring
    residual: Residual | None = None  # residual wiring of the stack (None: plain addition)
    vocab_size: int = 0  # vocabulary size of the stack's tokens, V (0: it reads vectors, not tokens)
    experts_per_token: int = 1  # experts chosen for each token, k, for a router
    sublayer: int = 0  # index among the sublayers of its block, for a residual wiring
