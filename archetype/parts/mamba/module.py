"""Mamba: a recurrence whose steps, inputs and outputs depend on the token."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.mamba import spec
from archetype.parts.mamba.scan import scan
from archetype.weights.linear import Linear


@dataclass
class MambaState(LayerState):
    """Last W = conv_kernel - 1 inputs of the convolution, and the SSM state."""

    conv: Float[Tensor, "B I W"]
    hidden: Float[Tensor, "B I Z"]


class StepProjection(nn.Linear):
    """Projection from `dt_rank` features to each channel's step size before softplus."""

    def __init__(self, mixer: spec.Mamba, d_model: int) -> None:
        super().__init__(mixer.rank(d_model), mixer.expand * d_model)
        self.spec = mixer

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # steps are log-uniform in [dt_min, dt_max]; the token's part gets variance 1/3 (Gu 2023, section 3.6)
        if name == "weight":
            bound = self.in_features**-0.5
            tensor.uniform_(-bound, bound, generator=generator)
        else:
            draw_steps(tensor, self.spec.dt_min, self.spec.dt_max, generator)
        return True


def draw_steps(tensor: Tensor, dt_min: float, dt_max: float, generator: torch.Generator | None) -> None:
    """Fill a tensor with step sizes before softplus, log-uniform between two bounds."""
    steps = tensor.uniform_(math.log(dt_min), math.log(dt_max), generator=generator).exp_()  # log-uniform
    # softplus is applied to the bias in every pass, and log(1 - exp(-s)) stays exact for small s
    tensor.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus


@module_for(spec.Mamba)
class Mamba(nn.Module):
    """out_proj(silu(z) * (scan(u) + D u)), u = silu(conv(x')), [x', z] = in_proj(x) (Gu 2023, algorithm 2, figure 3).

    With [r, b, c] = x_proj(u) the scan has steps delta = softplus(dt_proj(r)), rates A = -exp(A_log) and inputs
    delta u b, and is read by c. Computed in at least float32. Jamba has norms of r, b and c.
    """

    # rates and gains, which weight decay must not shrink
    parameter_roles: ClassVar = {"A_log": "vector", "D": "vector"}
    probes: ClassVar = {"u": "B T I", "delta": "B T I", "b": "B T Z", "c": "B T Z"}
    shown_means: ClassVar = ("delta",)

    def __init__(self, mixer: spec.Mamba, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        inner = mixer.expand * d_model
        self.spec, self.layer = mixer, place.layer
        self.sizes = (mixer.rank(d_model), mixer.state_size, mixer.state_size)
        self.in_proj = Linear(d_model, 2 * inner, bias=mixer.bias)
        self.conv = CausalConvolution(inner, mixer.conv_kernel, mixer.conv_bias)
        self.x_proj = Linear(inner, sum(self.sizes), bias=False)
        self.dt_proj = StepProjection(mixer, d_model)
        self.A_log = nn.Parameter(torch.empty(inner, mixer.state_size))
        self.D = nn.Parameter(torch.empty(inner))
        self.out_proj = Linear(inner, d_model, bias=mixer.bias)
        self.dt_norm, self.b_norm, self.c_norm = (build_norm(mixer.norm, size) for size in self.sizes)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # rates -1 ... -Z in every channel (S4D-Real, Gu 2022); D is 1
        if name == "A_log":
            tensor.copy_(torch.arange(1, self.spec.state_size + 1, device=tensor.device).log())
        else:
            tensor.fill_(1.0)
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MambaState:
        hidden = torch.zeros(batch, self.out_proj.in_features, self.spec.state_size, dtype=dtype, device=device)
        return MambaState(self.conv.new_state(batch, dtype, device), hidden)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, MambaState, x, context, cache)
        u, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, T, I) each
        # depthwise over the last W + 1 positions; `conv` is then the last W inputs
        u, conv = self.conv.convolve(u, context, before.conv)
        y, hidden = self.selective_scan(nn.functional.silu(u), context, before.hidden)  # y: (B, T, I)
        z: Tensor = self.out_proj((y * nn.functional.silu(gate)).to(x.dtype))  # (B, T, D)
        state.keep(conv=conv, hidden=hidden)
        return z

    def selective_scan(
        self, u: Float[Tensor, "B T I"], context: ForwardContext, hidden: Float[Tensor, "B I Z"]
    ) -> tuple[Float[Tensor, "B T I"], Float[Tensor, "B I Z"]]:
        exact = torch.promote_types(u.dtype, torch.float32)
        low_rank, *selected = self.x_proj(u).split(self.sizes, dim=-1)  # (B, T, r), (B, T, Z), (B, T, Z)
        b, c = (norm(x).to(exact) for norm, x in zip((self.b_norm, self.c_norm), selected, strict=True))
        delta = nn.functional.softplus(self.dt_proj(self.dt_norm(low_rank)).to(exact))  # (B, T, I)
        delta = context.fill_padding(delta)  # a step of zero leaves the state unchanged
        rates = -torch.exp(self.A_log.to(exact))
        u, delta, b, c = context.probes(self, u=u.to(exact), delta=delta, b=b, c=c)
        y, hidden = scan(delta, delta * u, b, c, rates, hidden.to(exact))
        return y + self.D.to(exact) * u, hidden  # the skip connection D u of each channel
