"""Mamba: a recurrence whose steps, inputs and outputs follow the token."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec
from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.registry import module_for
from archetype.nn.selective_scan import scan


@dataclass
class MambaState(LayerState):
    """The newest W = conv_kernel - 1 inputs of the convolution, and the numbers that decay."""

    conv: Float[Tensor, "B I W"]
    hidden: Float[Tensor, "B I Z"]


class StepProjection(nn.Linear):
    """The step size of each channel before its softplus, from the rank's features."""

    def __init__(self, mixer: spec.Mamba, d_model: int) -> None:
        super().__init__(mixer.rank(d_model), mixer.expand * d_model)
        self.spec = mixer

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Steps begin log-uniform between dt_min and dt_max; what the token adds has variance 1/3 (Gu 2023, 3.6)."""
        if name == "weight":
            bound = self.in_features**-0.5
            tensor.uniform_(-bound, bound, generator=generator)
        else:
            steps = tensor.uniform_(math.log(self.spec.dt_min), math.log(self.spec.dt_max), generator=generator)
            steps.exp_()
            tensor.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
        return True


class Convolution(nn.Conv1d):
    """Over each channel alone; its weights start uniform within 1 / sqrt(k), as the published code leaves them."""

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """A scheme for matrices would all but silence the mixer: a channel has only k inputs."""
        bound = self.kernel_size[0] ** -0.5
        tensor.uniform_(-bound, bound, generator=generator)
        return True


@module_for(spec.Mamba)
class Mamba(nn.Module):
    """out_proj(silu(z) * (scan(u) + D u)), u = silu(conv(x')), [x', z] = in_proj(x) (Gu 2023, algorithm 2, figure 3).

    With [r, b, c] = x_proj(u) the scan has the steps delta = softplus(dt_proj(r)), the rates A = -exp(A_log) and the
    inputs delta u b, and is read by c. It is computed in float32 at least.
    """

    def __init__(self, mixer: spec.Mamba, d_model: int, causal: bool = True, layer: int = 0) -> None:
        super().__init__()
        inner = mixer.expand * d_model
        self.spec, self.layer = mixer, layer
        self.sizes = (mixer.rank(d_model), mixer.state_size, mixer.state_size)
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=mixer.bias)
        self.conv = Convolution(inner, inner, mixer.conv_kernel, groups=inner, bias=mixer.conv_bias)
        self.x_proj = nn.Linear(inner, sum(self.sizes), bias=False)
        self.dt_proj = StepProjection(mixer, d_model)
        self.A_log = nn.Parameter(torch.empty(inner, mixer.state_size))
        self.D = nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=mixer.bias)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Rates -1 to -Z in every channel (S4D-Real, Gu 2022), and all of the input passed on."""
        if name == "A_log":
            tensor.copy_(torch.arange(1, self.spec.state_size + 1, device=tensor.device).log())
        else:
            tensor.fill_(1.0)
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MambaState:
        """Before a text stand zeros. The size does not depend on the capacity."""
        inner = self.out_proj.in_features
        conv, hidden = (
            torch.zeros(batch, inner, size, dtype=dtype, device=device)
            for size in (self.spec.conv_kernel - 1, self.spec.state_size)
        )
        return MambaState(conv, hidden)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Read the new positions after those that the cache has read. Padding is not read."""
        state = self.new_state(x.shape[0], 0, x.dtype, x.device) if cache is None else cache
        assert isinstance(state, MambaState)
        u, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, T, I) each
        conv, hidden = context.cached(("mamba", self.layer), lambda: (state.conv, state.hidden))
        u, conv = self.convolve(u.transpose(1, 2), context, conv)
        y, hidden = self.selective_scan(u, context, hidden)
        z: Tensor = self.out_proj((y * nn.functional.silu(gate)).to(x.dtype))
        state.conv, state.hidden = conv.to(state.conv.dtype), hidden.to(state.hidden.dtype)
        return z

    def convolve(
        self, u: Float[Tensor, "B I T"], context: ForwardContext, conv: Float[Tensor, "B I W"]
    ) -> tuple[Float[Tensor, "B T I"], Float[Tensor, "B I W"]]:
        """Each position with the W before it; and the newest W inputs of each row that are not padding."""
        inputs = torch.cat((conv.to(u.dtype), u), dim=2)
        y = nn.functional.silu(self.conv(inputs)).transpose(1, 2)
        if context.num_tokens is None:
            return y, inputs[:, :, u.shape[2] :].clone()  # no view, which would keep the whole text
        places = context.num_tokens[:, None] + torch.arange(conv.shape[2], device=u.device)
        return y, inputs.gather(2, places[:, None].expand(conv.shape))

    def selective_scan(
        self, u: Float[Tensor, "B T I"], context: ForwardContext, hidden: Float[Tensor, "B I Z"]
    ) -> tuple[Float[Tensor, "B T I"], Float[Tensor, "B I Z"]]:
        """Read the state at each position and add D u; a step of zero leaves the state as it is."""
        exact = torch.promote_types(u.dtype, torch.float32)
        low_rank, *selected = self.x_proj(u).split(self.sizes, dim=-1)
        b, c = (vectors.to(exact) for vectors in selected)
        delta = nn.functional.softplus(self.dt_proj(low_rank).to(exact))
        if context.valid is not None:
            delta = delta.masked_fill(~context.valid[..., None], 0.0)
        rates, u = -torch.exp(self.A_log.to(exact)), u.to(exact)
        y, hidden = scan(delta, delta * u, b, c, rates, hidden.to(exact))
        return y + self.D.to(exact) * u, hidden
