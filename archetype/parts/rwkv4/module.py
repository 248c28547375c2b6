"""RWKV-4: decayed sums of exponential weights for each feature."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import diagonal_chunk, read_chunks, shifted, stabilized
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import ConvolutionState
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.token_shift import mixed, previous_tokens
from archetype.parts.rwkv4 import spec
from archetype.weights.linear import Linear

# Logarithm of the largest weight before the first token, and of the weight of padding, which is negligible.
EMPTY, LOG_ZERO = -1e30, -2e30


@dataclass
class RWKV4State(ConvolutionState):
    """State: the last token, the weighted sums of values and of weights, and the logarithm of their common divisor."""

    sums: Float[Tensor, "B sums"]
    top: Float[Tensor, "B I"]


def wkv_chunk(
    bonus: Float[Tensor, "I"],
    sums: Float[Tensor, "B sums"],
    top: Float[Tensor, "B I"],
    k: Float[Tensor, "B T I"],
    v: Float[Tensor, "B T I"],
    a: Float[Tensor, "B T I"],
    *,
    size: int,
) -> tuple[Float[Tensor, "B T I"], Float[Tensor, "B sums"], Float[Tensor, "B I"]]:
    """Read chunks. `a` and `k` are logarithms of decays and of weights."""
    a, write, m = stabilized(top, a, k)
    weights = write.exp()
    sums = sums.unflatten(1, (2, -1))  # of weighted values, and of weights
    after, last = diagonal_chunk(sums, torch.stack((weights * v, weights), 2), a[:, :, None], size=size)
    # the newest token has another weight in its own output than in the sums
    values, count = shifted(sums, after).unbind(2)
    newest, before = bonus + k, shifted(top, m)
    largest = torch.maximum(before, newest).detach()
    old, new = (before - largest).exp(), (newest - largest).exp()
    # at least 1, but for rounding, and 0 only in a row of padding
    total = (old * count + new).clamp(min=0.5)
    return (old * values + new * v) / total, last.flatten(1), m[:, -1]


@module_for(spec.RWKV4)
class RWKV4(nn.Module):
    """o(sigmoid(r(x')) * wkv(k(x''), v(x'''))), computed in at least float32 (Peng 2023, equations 11 to 15)."""

    # rates and shares, which weight decay must not shrink
    parameter_roles: ClassVar = dict.fromkeys(("mix_r", "mix_k", "mix_v", "decay", "bonus"), "vector")
    probes: ClassVar[Mapping[str, str]] = {"r": "B T I", "k": "B T I", "v": "B T I", "wkv": "B T I"}
    shown_means: ClassVar = ("k", "r")

    def __init__(self, mixer: spec.RWKV4, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, d_model, inner = mixer, place.layer, place.d_model, mixer.width or place.d_model
        self.r, self.k, self.v = (Linear(d_model, inner, bias=False) for _ in range(3))
        self.o = Linear(inner, d_model, bias=False)
        self.mix_r, self.mix_k, self.mix_v = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.decay, self.bonus = (nn.Parameter(torch.empty(inner)) for _ in range(2))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # shares of any size, decays from slow to fast, and the bonus of Peng 2023, appendix D
        match name:
            case "decay":
                tensor.copy_(torch.linspace(-5.0, 3.0, tensor.shape[0], device=tensor.device))
            case "bonus":
                tensor.fill_(0.3).log_()
            case _:
                tensor.uniform_(0.0, 1.0, generator=generator)
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> RWKV4State:
        d_model, inner = self.k.in_features, self.k.out_features
        conv, sums, top = (
            torch.full((batch, *size), fill, dtype=dtype, device=device)
            for size, fill in (((d_model, 1), 0.0), ((2 * inner,), 0.0), ((inner,), max(EMPTY, torch.finfo(dtype).min)))
        )
        return RWKV4State(conv, sums, top)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, RWKV4State, x, context, cache)
        exact = torch.promote_types(x.dtype, torch.float32)
        previous, conv = previous_tokens(x, context, before.conv)
        r, k, v = (
            project(mixed(x, previous, share, of_previous=False))
            for project, share in ((self.r, self.mix_r), (self.k, self.mix_k), (self.v, self.mix_v))
        )  # (B, T, I) each
        k, v = k.to(exact), v.to(exact)
        a = -self.decay.to(exact).exp().expand_as(k)
        k, a = context.fill_padding(k, LOG_ZERO), context.fill_padding(a)  # nothing is forgotten or written
        r, k, v = context.probes(self, r=r, k=k, v=v)
        chunk, states = partial(wkv_chunk, self.bonus.to(exact)), (before.sums.to(exact), before.top.to(exact))
        y, sums, top = read_chunks(chunk, self.spec.chunk_size, states, k, v, a)
        state.keep(conv=conv, sums=sums, top=top)
        return self.o(torch.sigmoid(r) * context.probe(self, "wkv", y).to(x.dtype))
