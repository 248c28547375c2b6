"""Gated delta networks: linear attention whose memory decays and is corrected by each token."""

from collections.abc import Callable
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
from archetype.parts.gated_delta_net import spec
from archetype.parts.mamba.module import draw_steps
from archetype.weights.linear import Linear
from archetype.weights.low_rank import add_projection, projected

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": nn.functional.silu, "sigmoid": torch.sigmoid}


class HeadNorm(nn.Module):
    """norm(y) gate(z), or norm(y), with each head normalized separately (Yang 2024b, section 3.4)."""

    def __init__(self, features: int, eps: float, gate: str) -> None:
        super().__init__()
        self.eps, self.gate = eps, GATES.get(gate)
        self.weight = nn.Parameter(torch.empty(features))

    def forward(
        self, y: Float[Tensor, "B T H Q"], z: Float[Tensor, "B T H Q"] | None, dtype: torch.dtype
    ) -> Float[Tensor, "B T H Q"]:
        normed = self.weight * nn.functional.rms_norm(y, y.shape[-1:], None, self.eps).to(dtype)
        return normed if self.gate is None or z is None else (normed * self.gate(z.to(y.dtype))).to(dtype)


@module_for(spec.GatedDeltaNet)
class GatedDeltaNet(nn.Module):
    """o(norm(delta_rule(q, k, v)) * silu(gate(x))), [q, k, v] = silu(conv([q(x), k(x), v(x)])) (Yang 2024b).

    The decay is exp(-exp(A_log) softplus(a(x) + dt_bias)), or exp(bound sigmoid(exp(A_log) (a(x) + dt_bias))), the rate
    sigmoid(b(x)). Computed in at least float32. Projections of low rank are a_up(a_down(x)) and gate_up(gate_down(x)).
    """

    parameter_roles: ClassVar = {"A_log": "vector"}  # rates, which weight decay must not shrink
    probes: ClassVar = {"q": "B T K P", "k": "B T K P", "v": "B T H Q", "log_decay": "B T H *dims", "rate": "B T H"}
    shown_means: ClassVar = ("rate", "log_decay")

    def __init__(self, mixer: spec.GatedDeltaNet, place: Place) -> None:
        super().__init__()
        self.spec, self.layer = mixer, place.layer
        keys, values = mixer.key_heads * mixer.head_dim, mixer.num_heads * mixer.v_head_dim
        self.keys, self.values = keys, values
        gates = values * (mixer.gate != "none")
        widths = {"q": keys, "k": keys, "v": values, "gate": gates, "a": mixer.decays, "b": mixer.num_heads}
        for name, width in widths.items():
            rank = {"gate": mixer.gate_rank, "a": mixer.decay_rank}.get(name)
            if width:
                add_projection(self, name, place.d_model, width, rank, name == "gate" and mixer.gate_bias)
        self.conv = CausalConvolution(mixer.conv_channels, mixer.conv_kernel, bias=False)
        if mixer.decays:
            self.dt_bias, self.A_log = (nn.Parameter(torch.empty(size)) for size in (mixer.decays, mixer.num_heads))
        self.norm = HeadNorm(mixer.v_head_dim, mixer.eps, mixer.gate)
        self.o = Linear(values, place.d_model, bias=False)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # steps and rates as in Mamba-2
        if name == "dt_bias":
            draw_steps(tensor, 0.001, 0.1, generator)
        else:
            tensor.uniform_(1.0, 16.0, generator=generator).log_()
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MatrixState:
        sizes = self.spec.num_heads, self.spec.head_dim, self.spec.v_head_dim
        memory = torch.zeros(batch, *sizes, dtype=dtype, device=device)
        return MatrixState(self.conv.new_state(batch, dtype, device), memory)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, MatrixState, x, context, cache)
        mixer, exact = self.spec, torch.promote_types(x.dtype, torch.float32)
        # one depthwise convolution over the channels of q, k and v
        inputs = torch.cat([projected(self, name, x) for name in "qkv"], dim=-1)
        u, conv = self.conv.convolve(inputs, context, before.conv)
        both, v = nn.functional.silu(u).to(exact).split((2 * self.keys, self.values), dim=-1)
        # (B, T, 2 K, P), (B, T, H, Q)
        both, v = both.unflatten(-1, (2 * mixer.key_heads, -1)), v.unflatten(-1, (mixer.num_heads, -1))
        # unit-length queries and keys
        q, k = (both * torch.rsqrt(both.square().sum(-1, keepdim=True) + 1e-6)).chunk(2, dim=-2)
        # log of the decay a_t, (B, T, H) or (B, T, H, P), and rate b_t, (B, T, H)
        a = self._log_decay(x, exact)
        # 1 - b_t |k_t|^2 is an eigenvalue of the update: rates up to 2 make it negative
        b = projected(self, "b", x).to(exact).sigmoid()
        b = 2.0 * b if mixer.negative_eigenvalues else b
        a, b = context.fill_padding(a), context.fill_padding(b)  # neither decay nor correction
        q, k, v, a, b = context.probes(self, q=q, k=k, v=v, log_decay=a, rate=b)
        steps = q * mixer.head_dim**-0.5, k, v, a, b
        y, memory = read_chunks(linear_chunk, mixer.chunk_size, (before.memory.to(exact),), *steps)  # y: (B, T, H, Q)
        state.keep(conv=conv, memory=memory)
        z = None if mixer.gate == "none" else projected(self, "gate", x).unflatten(-1, (mixer.num_heads, -1))
        return self.o(self.norm(y, z, inputs.dtype).flatten(-2))  # (B, T, H, Q), joined to (B, T, H Q)

    def _log_decay(self, x: Vectors, exact: torch.dtype) -> Float[Tensor, "B T H *dims"]:
        mixer = self.spec
        if not mixer.decays:
            return torch.zeros(*x.shape[:2], mixer.num_heads, dtype=exact, device=x.device)
        steps, rates = projected(self, "a", x).to(exact) + self.dt_bias.to(exact), self.A_log.to(exact).exp()
        if mixer.decay == "channel":
            steps, rates = steps.unflatten(-1, (mixer.num_heads, -1)), rates[:, None]  # (B, T, H, P), (H, 1)
        if mixer.decay_bound is not None:
            return mixer.decay_bound * torch.sigmoid(rates * steps)
        return -rates * nn.functional.softplus(steps)
