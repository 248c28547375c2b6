"""What a forward pass of any model returns."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from archetype.nn.cache import State


@dataclass
class Output:
    """The result of a forward pass.

    Attributes:
        logits: of tokens (B, t, V) or classes (B, Y); None for a model without a head.
        state: what the next tokens go on from, where the pass was given a state.
        aux_loss: what parts add to the training loss, such as a balance of experts; None where none does.
        hidden: the vectors of all positions after the last norm, (B, T, D), where all are computed.
    """

    logits: Tensor | None
    state: State | None = None
    aux_loss: Float[Tensor, ""] | None = None
    hidden: Float[Tensor, "B T D"] | None = None
