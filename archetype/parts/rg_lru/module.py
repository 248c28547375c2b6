"""Real-gated linear recurrent unit: a vector of constant size whose features decay by gates (Griffin)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import diagonal_chunk, read_chunks
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.activation.module import activation
from archetype.parts.rg_lru import spec
from archetype.weights.linear import Linear

SHARPNESS = 8.0  # c of the paper
RADII = 0.9, 0.999  # of the decays of a wide open gate at initialization


@dataclass
class RGLRUState(LayerState):
    """Last W = conv_kernel - 1 inputs of the convolution, and the recurrence's vector."""

    conv: Float[Tensor, "B I W"]
    hidden: Float[Tensor, "B I"]


class HeadLinear(nn.Module):
    """A matrix and a bias for each head's features."""

    def __init__(self, heads: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, features, features))
        self.bias = nn.Parameter(torch.empty(heads, features))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        if name == "bias":
            tensor.zero_()
        else:
            tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
        return True

    def forward(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B T I"]:
        heads, features = self.bias.shape
        y = x.reshape(-1, heads, features).transpose(0, 1) @ self.weight.to(x.dtype)  # (H, B T, I / H)
        return (y.transpose(0, 1) + self.bias.to(x.dtype)).reshape(x.shape)


@module_for(spec.RGLRU)
class RGLRU(nn.Module):
    """o(rg_lru(conv(x(x))) * activation(gate(x))) (De 2024, figure 2b). The recurrence is in at least float32."""

    parameter_roles: ClassVar = {"rate": "vector"}  # which weight decay must not shrink
    probes: ClassVar = {"u": "B T I", "log_decay": "B T I", "hidden": "B T I"}
    shown_means: ClassVar = ("log_decay",)

    def __init__(self, mixer: spec.RGLRU, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, inner = mixer, place.layer, mixer.inner(place.d_model)
        self.x, self.gate = (Linear(place.d_model, inner, bias=True) for _ in range(2))
        self.conv = CausalConvolution(inner, mixer.conv_kernel, bias=True)
        self.input_gate, self.decay_gate = (HeadLinear(mixer.num_heads, inner // mixer.num_heads) for _ in range(2))
        self.rate = nn.Parameter(torch.empty(inner))
        self.activation = activation(mixer.activation)
        self.o = Linear(inner, place.d_model, bias=True)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # uniform on the ring between two radii; softplus is applied in every pass
        tensor.uniform_(RADII[0] ** 2, RADII[1] ** 2, generator=generator).log_().mul_(-0.5)
        tensor.copy_(tensor.expm1().log())
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> RGLRUState:
        hidden = torch.zeros(batch, self.rate.shape[0], dtype=dtype, device=device)
        return RGLRUState(self.conv.new_state(batch, dtype, device), hidden)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, RGLRUState, x, context, cache)
        exact = torch.promote_types(x.dtype, torch.float32)
        u, conv = self.conv.convolve(self.x(x), context, before.conv)  # (B, T, I)
        a = -SHARPNESS * torch.sigmoid(self.decay_gate(u).to(exact)) * nn.functional.softplus(self.rate.to(exact))
        # 1 - a^2 without cancellation; the root of a step of nothing has no slope, so it is kept above 0
        root = torch.sqrt((-torch.expm1(2.0 * a)).clamp(min=torch.finfo(exact).tiny))
        root = torch.where(context.positions[..., None] == 0, 1.0, root)
        written = root * (u * torch.sigmoid(self.input_gate(u))).to(exact)
        a, written = context.fill_padding(a), context.fill_padding(written)
        u, a = context.probes(self, u=written, log_decay=a)
        h, hidden = read_chunks(diagonal_chunk, self.spec.chunk_size, (before.hidden.to(exact),), u, a)
        h = context.probe(self, "hidden", h)
        state.keep(conv=conv, hidden=hidden)
        return self.o(h.to(x.dtype) * self.activation(self.gate(x)))
