"""Where a module stands: what its constructor is told beside its specification."""

from dataclasses import dataclass

from archetype.roles.residual import Residual


@dataclass(frozen=True)
class Place:
    """The place of a block's content, or of a block itself, in its model.

    Attributes:
        d_model: features of the vectors that it reads and gives, D.
        layer: index of its layer in the stack.
        num_layers: layers of the stack, L.
        causal: whether no position may depend on a later one.
        content: index among all contents of the stack, of a residual wiring.
        residual: how the stack carries what its contents give (None: it adds them up).
        vocab_size: ids of the tokens that the stack reads, V (0: it reads vectors that stand for no token).
        experts_per_token: experts that a token chooses, k, of a router.
    """

    d_model: int
    layer: int = 0
    num_layers: int = 1
    causal: bool = True
    content: int = 0
    residual: Residual | None = None
    vocab_size: int = 0
    experts_per_token: int = 1
