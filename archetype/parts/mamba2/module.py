"""Mamba-2: a state space computed in chunks of matrix products."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import linear_chunk, read_chunks
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution, MatrixState
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.mamba.module import draw_steps
from archetype.parts.mamba2 import spec
from archetype.weights.linear import Linear


class GatedNorm(nn.Module):
    """norm(y silu(z)) or norm(y) silu(z), with the features of each group normalized apart (Dao 2024, section 7.1)."""

    def __init__(self, features: int, groups: int, eps: float, gate_first: bool) -> None:
        super().__init__()
        self.groups, self.eps, self.gate_first = groups, eps, gate_first
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, y: Float[Tensor, "B T HP"], z: Float[Tensor, "B T HP"]) -> Float[Tensor, "B T HP"]:
        gate = nn.functional.silu(z.to(y.dtype))
        grouped = (y * gate if self.gate_first else y).unflatten(-1, (self.groups, -1))  # (B, T, groups, HP / groups)
        normed = nn.functional.rms_norm(grouped, grouped.shape[-1:], None, self.eps).flatten(-2)
        return self.weight * normed.to(z.dtype) if self.gate_first else (self.weight * normed * gate).to(z.dtype)


@module_for(spec.Mamba2)
class Mamba2(nn.Module):
    """out_proj(norm(silu(z) * (scan(u) + D u))), [u, b, c] = silu(conv(x')), [z, x', r] = in_proj(x) (Dao 2024).

    The scan has steps delta = softplus(r + dt_bias), clamped if there are limits, rates A = -exp(A_log) per head and
    inputs delta u b^T, and is read by c. Computed in at least float32.
    """

    # rates and gains, which weight decay must not shrink
    parameter_roles: ClassVar = {"A_log": "vector", "D": "vector"}
    probes: ClassVar = {"u": "B T H P", "delta": "B T H", "b": "B T groups Z", "c": "B T groups Z"}
    shown_means: ClassVar = ("delta",)

    def __init__(self, mixer: spec.Mamba2, place: Place) -> None:
        super().__init__()
        self.spec, self.layer = mixer, place.layer
        self.in_proj = Linear(place.d_model, mixer.inner + mixer.conv_channels + mixer.num_heads, bias=mixer.bias)
        self.conv = CausalConvolution(mixer.conv_channels, mixer.conv_kernel, mixer.conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(mixer.num_heads)) for _ in range(3))
        if mixer.has_norm:
            self.norm = GatedNorm(mixer.inner, mixer.num_groups, mixer.eps, mixer.norm == "after_gate")
        self.out_proj = Linear(mixer.inner, place.d_model, bias=mixer.bias)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # steps as in Mamba, rates uniform from 1 to 16 (Dao 2024, section 7.1), D is 1
        match name:
            case "dt_bias":
                draw_steps(tensor, self.spec.dt_min, self.spec.dt_max, generator)
            case "A_log":
                tensor.uniform_(1.0, 16.0, generator=generator).log_()
            case _:
                tensor.fill_(1.0)
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MatrixState:
        sizes = self.spec.num_heads, self.spec.state_size, self.spec.head_dim
        memory = torch.zeros(batch, *sizes, dtype=dtype, device=device)
        return MatrixState(self.conv.new_state(batch, dtype, device), memory)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, MatrixState, x, context, cache)
        mixer = self.spec
        # gate (B, T, HP), channels of the convolution, steps (B, T, H)
        z, u, r = self._scaled(self.in_proj(x)).split((mixer.inner, mixer.conv_channels, mixer.num_heads), dim=-1)
        u, conv = self.conv.convolve(u, context, before.conv)
        y, memory = self.scan(nn.functional.silu(u), r, context, before.memory)
        state.keep(conv=conv, memory=memory)
        y = self.norm(y, z) if mixer.has_norm else (y * nn.functional.silu(z.to(y.dtype))).to(z.dtype)
        return self.out_proj(y)

    def _scaled(self, projected: Float[Tensor, "B T features"]) -> Float[Tensor, "B T features"]:
        mixer = self.spec
        if mixer.in_scales is None:
            return projected
        shared = mixer.num_groups * mixer.state_size
        widths = mixer.inner, mixer.inner, shared, shared, mixer.num_heads
        parts = (projected.new_full((width,), scale) for width, scale in zip(widths, mixer.in_scales, strict=True))
        return projected * torch.cat(tuple(parts))

    def scan(
        self,
        u: Float[Tensor, "B T channels"],
        r: Float[Tensor, "B T H"],
        context: ForwardContext,
        memory: Float[Tensor, "B H P Q"],
    ) -> tuple[Float[Tensor, "B T HP"], Float[Tensor, "B H P Q"]]:
        mixer, exact = self.spec, torch.promote_types(u.dtype, torch.float32)
        delta = nn.functional.softplus(r.to(exact) + self.dt_bias.to(exact))  # (B, T, H)
        # in every pass; transformers clamps only when it reads a whole text
        if mixer.limits_steps:
            delta = delta.clamp(mixer.dt_limit_min, mixer.dt_limit_max)
        delta = context.fill_padding(delta)  # a step of zero leaves the memory unchanged
        shared = mixer.num_groups * mixer.state_size
        v, b, c = u.to(exact).split((mixer.inner, shared, shared), dim=-1)  # to (B, T, H, P) and (B, T, K, Z)
        v, b, c = (
            part.unflatten(-1, sizes)
            for part, sizes in ((v, (mixer.num_heads, -1)), (b, (mixer.num_groups, -1)), (c, (mixer.num_groups, -1)))
        )
        v, delta, b, c = context.probes(self, u=v, delta=delta, b=b, c=c)
        # as linear attention: queries c, keys b, values delta v, log decays delta A
        inputs = c, b, delta[..., None] * v, -delta * self.A_log.to(exact).exp()
        # y: (B, T, H, P)
        y, memory = read_chunks(linear_chunk, mixer.chunk_size, (memory.to(exact),), *inputs)
        return (y + self.D.to(exact)[:, None] * v).flatten(-2), memory
