"""Routers that learn: a logit for each expert, and affinities of all of them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.router import spec


class LinearRouter(nn.Linear):
    """A projection of a token's vector to the logits of all experts (Shazeer 2017).

    Args:
        router: the specification.
        num_experts: E.
        place: of the mixture.
    """

    def __init__(self, router: spec.LinearRouter, num_experts: int, place: Place) -> None:
        super().__init__(place.d_model, num_experts, bias=router.bias)

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext | None = None) -> Float[Tensor, "N E"]:
        """In float32 at least: rounding the logits of near experts would choose another one."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.to(dtype)
            return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """How close each token is to each expert."""
        raise NotImplementedError


@module_for(spec.SoftmaxRouter)
class SoftmaxRouter(LinearRouter):
    """Experts share a token's affinity (Shazeer 2017)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """The softmax over all experts."""
        return logits.softmax(-1)


@module_for(spec.SigmoidRouter)
class SigmoidRouter(LinearRouter):
    """Each expert has an affinity of its own (DeepSeek-AI 2024b, equation 15)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """The sigmoid of each logit."""
        return logits.sigmoid()
