"""Causal convolution over the newest positions, used by state space models and linear attention."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from archetype.native.torch_hooks import is_watched
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState


@dataclass
class ConvolutionState(LayerState):
    """The newest W = conv_kernel - 1 inputs of a causal convolution."""

    conv: Float[Tensor, "B channels W"]


@dataclass
class MatrixState(ConvolutionState):
    """Convolution inputs, and the state matrix of each head."""

    memory: Float[Tensor, "B H P Q"]


class CausalConvolution(nn.Conv1d):
    """Depthwise causal convolution over W + 1 positions, with initial weights uniform in +- 1 / sqrt(W + 1)."""

    def __init__(self, channels: int, kernel: int, bias: bool, dilation: int = 1) -> None:
        super().__init__(channels, channels, kernel, groups=channels, bias=bias, dilation=dilation)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # depends on the kernel size; the initialization of matrices would make the outputs of the mixer nearly 0
        bound = self.kernel_size[0] ** -0.5
        tensor.uniform_(-bound, bound, generator=generator)
        return True

    def new_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "B channels W"]:
        width = (self.kernel_size[0] - 1) * self.dilation[0]
        return torch.zeros(batch, self.in_channels, width, dtype=dtype, device=device)

    def forward(self, inputs: Float[Tensor, "B channels S"]) -> Float[Tensor, "B channels T"]:
        if inputs.shape[2] > (self.kernel_size[0] - 1) * self.dilation[0] + 1 or is_watched():
            return super().forward(inputs)
        # of one position, for which torch's convolution takes ten times as long as a product for each channel
        y = (inputs[..., :: self.dilation[0]].transpose(0, 1) @ self.weight.mT).permute(1, 0, 2)
        return y if self.bias is None else y + self.bias[:, None]

    def convolve(
        self, x: Float[Tensor, "B T channels"], context: ForwardContext, conv: Float[Tensor, "B channels W"]
    ) -> tuple[Float[Tensor, "B T channels"], Float[Tensor, "B channels W"]]:
        """Convolve the new positions. Return the outputs and the newest W inputs of each sequence, padding excluded."""
        inputs, newest = after_newest(x.transpose(1, 2), context, conv)
        return self(inputs).transpose(1, 2), newest


def after_newest(
    x: Shaped[Tensor, "B channels T"], context: ForwardContext, conv: Shaped[Tensor, "B channels W"]
) -> tuple[Shaped[Tensor, "B channels S"], Shaped[Tensor, "B channels W"]]:
    """Prepend the W previous inputs. Return all inputs and the newest W of each sequence, padding excluded."""
    inputs = torch.cat((conv.to(x.dtype), x), dim=2)
    if context.num_tokens is None:
        return inputs, inputs[:, :, x.shape[2] :].clone()  # a view would keep all inputs in memory
    # (B, W): token t is at index W + t of `inputs`, so the newest W of n tokens start at index n
    positions = context.num_tokens[:, None] + torch.arange(conv.shape[2], device=x.device)
    return inputs, inputs.gather(2, positions[:, None].expand(conv.shape))
