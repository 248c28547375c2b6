"""The base of all models, which knows where their weights are, and the output of a forward pass."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import State
from archetype.nn.context import Vectors
from archetype.weights.packed import PackedMatrix


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
    hidden: Vectors | None = None


class BaseModel(nn.Module):
    """Base of all models."""

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(tensor for tensors in (self.parameters(), self.buffers()) for tensor in tensors).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights; of the vectors, where all weights are packed."""
        for parameter in self.parameters():
            return parameter.dtype
        return next(module.dtype for module in self.modules() if isinstance(module, PackedMatrix))
