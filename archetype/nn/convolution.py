"""The convolution over the newest tokens that state spaces and their kin begin with."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext


@dataclass
class ConvolutionState(LayerState):
    """The newest W = conv_kernel - 1 inputs of the convolution."""

    conv: Float[Tensor, "B channels W"]


@dataclass
class MatrixState(ConvolutionState):
    """The same, and each head's memory: what keys (or B) wrote to values."""

    memory: Float[Tensor, "B H P Q"]


class CausalConvolution(nn.Conv1d):
    """Each channel alone, each position with the W before it; weights start uniform within 1 / sqrt(W + 1)."""

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__(channels, channels, kernel, groups=channels, bias=bias)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """A scheme for matrices would all but silence the mixer: a channel has only k inputs."""
        bound = self.kernel_size[0] ** -0.5
        tensor.uniform_(-bound, bound, generator=generator)
        return True

    def new_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "B channels W"]:
        """Zeros, which stand before a text."""
        return torch.zeros(batch, self.in_channels, self.kernel_size[0] - 1, dtype=dtype, device=device)

    def convolve(
        self, x: Float[Tensor, "B T channels"], context: ForwardContext, conv: Float[Tensor, "B channels W"]
    ) -> tuple[Float[Tensor, "B T channels"], Float[Tensor, "B channels W"]]:
        """The convolution of the new positions, and the newest W inputs of each row that are not padding."""
        inputs, newest = after_newest(x.transpose(1, 2), context, conv)
        return self(inputs).transpose(1, 2), newest


def after_newest(
    x: Float[Tensor, "B channels T"], context: ForwardContext, conv: Float[Tensor, "B channels W"]
) -> tuple[Float[Tensor, "B channels S"], Float[Tensor, "B channels W"]]:
    """The new inputs behind the W before them, and the newest W inputs of each row that are not padding."""
    inputs = torch.cat((conv.to(x.dtype), x), dim=2)
    if context.num_tokens is None:
        return inputs, inputs[:, :, x.shape[2] :].clone()  # no view, which would keep the whole text
    places = context.num_tokens[:, None] + torch.arange(conv.shape[2], device=x.device)
    return inputs, inputs.gather(2, places[:, None].expand(conv.shape))
