"""Convolutions over the projected queries and keys together, and values of the previous token (CCA)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.nn.convolution import ConvolutionState, after_newest
from archetype.parts.attention import spec
from archetype.roles.position import AttentionSizes


class JointConvolution(nn.Module):
    """grouped(depthwise([q; k])) plus means of q and k; half of the values are those of the previous token (ZAYA1)."""

    def __init__(self, convolution: spec.JointConvolution, sizes: AttentionSizes, values: int) -> None:
        super().__init__()
        heads, self.sizes, self.delayed = sizes.num_heads + sizes.num_kv_heads, sizes, values // 2
        self.channels, (first, second) = heads * sizes.head_dim, convolution.kernels
        self.depthwise = nn.Conv1d(self.channels, self.channels, first, groups=self.channels)
        self.grouped = nn.Conv1d(self.channels, self.channels, second, groups=heads)
        self.reach = convolution.reach

    def new_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> ConvolutionState:
        """Return the newest projected queries, keys and values that later positions read."""
        shape = (batch, self.channels + self.delayed, self.reach)
        return ConvolutionState(torch.zeros(shape, dtype=dtype, device=device))

    def forward(
        self,
        q: Float[Tensor, "B T HP"],
        k: Float[Tensor, "B T KP"],
        v: Float[Tensor, "B T KQ"],
        context: ForwardContext,
        state: ConvolutionState | None,
    ) -> tuple[Float[Tensor, "B T HP"], Float[Tensor, "B T KP"], Float[Tensor, "B T KQ"]]:
        """Return queries, keys and values, and replace the state."""
        _, kv_heads, head_dim, *_ = self.sizes
        now, later = v[..., : -self.delayed], v[..., -self.delayed :]
        joined = torch.cat((q, k, later), dim=-1).transpose(1, 2)  # (B, channels, T)
        before = self.new_state(q.shape[0], q.dtype, q.device) if state is None else context.before(state)
        inputs, newest = after_newest(joined, context, before.conv)
        if state is not None:
            state.conv = newest.to(state.conv.dtype)
        y = self.grouped(self.depthwise(inputs[:, : self.channels])).transpose(1, 2)  # (B, T, channels)
        of_queries, of_keys = y.split((q.shape[-1], k.shape[-1]), dim=-1)
        # each query head's mean with its key head, and their mean over the heads of a group
        means = (q.unflatten(-1, (kv_heads, -1, head_dim)) + k.unflatten(-1, (kv_heads, 1, head_dim))) * 0.5
        delayed = inputs[:, self.channels :, self.reach - 1 : -1].transpose(1, 2)  # (B, T, KQ / 2)
        values = torch.cat((now, delayed), dim=-1)
        return of_queries + means.flatten(2), of_keys + means.mean(3).flatten(2), values
