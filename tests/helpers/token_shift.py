"""An extension file: a feed-forward part with a state, and a residual wiring that only adds."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import ForwardContext, LayerState, Place, ResidualStream, Size


class ChannelMix(spec.FeedForward):
    """down(relu(up(x_t + mu (x_(t-1) - x_t)))^2): the channel mixing of RWKV (Peng 2023)."""

    kind: Literal["channel_mix"] = "channel_mix"
    d_ff: Size

    @property
    def separates_documents(self) -> bool:
        return False


@dataclass
class Previous(LayerState):
    """The vector of the token before."""

    vector: Tensor  # (B, 1, D)


class Module(nn.Module):
    """Each position with the one before it."""

    def __init__(self, mix: ChannelMix, place: Place) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.rand(place.d_model))
        self.up = nn.Linear(place.d_model, mix.d_ff, bias=False)
        self.down = nn.Linear(mix.d_ff, place.d_model, bias=False)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> Previous:
        return Previous(torch.zeros(batch, 1, self.up.in_features, dtype=dtype, device=device))

    def forward(self, x: Tensor, context: ForwardContext, state: Previous | None = None) -> Tensor:
        first = torch.zeros_like(x[:, :1]) if state is None else state.vector.to(x.dtype)
        shifted = torch.cat((first, x), 1)
        if state is not None:
            num_tokens = torch.full_like(context.positions[:, 0], x.shape[1])
            last = num_tokens if context.num_tokens is None else context.num_tokens
            state.vector = shifted.gather(1, last[:, None, None].expand(-1, 1, x.shape[2])).to(state.vector.dtype)
        return self.down(self.up(x + self.mu * (shifted[:, :-1] - x)).relu().square())


class Added(spec.Residual):
    """x + F(x), as a residual wiring from outside says it."""

    kind: Literal["added"] = "added"


class AddedStream(ResidualStream):
    """The sum."""

    @staticmethod
    def enter(residual: Added, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def leave(residual: Added, stream: Tensor) -> Tensor:
        return stream

    def read(self, stream: Tensor, context: ForwardContext) -> Tensor:
        return stream

    def write(self, stream: Tensor, y: Tensor, context: ForwardContext) -> Tensor:
        return stream + y


archetype.register(ChannelMix, module=Module)
archetype.register(Added, module=AddedStream)
