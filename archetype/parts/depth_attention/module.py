"""Attention over depth, with the sums of all blocks of layers as the residual stream."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.autocast import without_autocast
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.residual import ResidualStream
from archetype.parts.depth_attention import spec


class DepthQuery(nn.Module):
    """Query of one sublayer, or of the stack's output."""

    initial_values: ClassVar = {"query": 0.0}  # begin with the mean
    norm_weight: nn.Parameter | None

    def __init__(self, residual: spec.DepthAttention, d_model: int) -> None:
        super().__init__()
        self.spec, self.query = residual, nn.Parameter(torch.empty(1, d_model))
        weight = nn.Parameter(torch.empty(d_model)) if residual.norm_weight else None
        self.register_parameter("norm_weight", weight)

    def forward(self, stream: Float[Tensor, "B T n D"]) -> Vectors:
        with without_autocast(stream):
            x = stream.to(torch.promote_types(stream.dtype, torch.float32))
            # the norm's factor is applied to scores and weights, so that no normed vectors are stored
            size = (x.square().mean(-1) + self.spec.norm_eps).rsqrt()  # (B, T, n)
            query = self.query if self.norm_weight is None else self.query * self.norm_weight
            scores = nn.functional.linear(x, query.to(x.dtype)).squeeze(-1) * size
            weights = (scores * x.shape[-1] ** -0.5 if self.spec.scaled else scores).softmax(-1)
            weights = weights * size if self.spec.normed_values else weights
            return (weights[:, :, None] @ x).squeeze(2).to(stream.dtype)


@module_for(spec.DepthAttention)
class DepthAttentionModule(ResidualStream):
    """The last vector of the stream is the sum of the current block of layers; those before are complete."""

    def __init__(self, residual: spec.DepthAttention, place: Place) -> None:
        super().__init__(residual, place)
        self.attend = None if place.content == 0 else DepthQuery(residual, place.d_model)

    @staticmethod
    def exit(residual: spec.DepthAttention, place: Place) -> nn.Module:
        return DepthQuery(residual, place.d_model)

    def read(self, stream: Float[Tensor, "B T n D"], context: ForwardContext) -> Vectors:
        return stream[:, :, -1] if self.attend is None else self.attend(stream)

    def write(
        self, stream: Float[Tensor, "B T n D"], y: Vectors, context: ForwardContext
    ) -> Float[Tensor, "B T ... D"]:
        y = y[:, :, None].to(stream.dtype)
        if self.place.sublayer == 0 and self.spec.starts_block(context.layer):
            return torch.cat((stream, y), dim=2)
        return torch.cat((stream[:, :, :-1], stream[:, :, -1:] + y), dim=2)
