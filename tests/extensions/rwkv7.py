"""RWKV-7 "Goose" (Peng 2025, arXiv 2503.14456) from outside: time mixing, and channel mixing that has a state too."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import (
    FLOAT32,
    Complexity,
    ConvolutionState,
    Counts,
    Formula,
    ForwardContext,
    Index,
    MatrixState,
    MixerCost,
    Place,
    TrainingWork,
    Vectors,
    Work,
    after_newest,
    invalid,
    symbol,
)


class TimeMixing(spec.Mixer):
    """S_t = S_{t-1} (diag(w_t) - z_t^T (a_t z_t)) + v_t^T k_t, y_t = S_t r_t, where z_t is the key to be removed."""

    kind: Literal["rwkv7_time_mixing"] = "rwkv7_time_mixing"
    num_heads: spec.Heads
    rank: spec.Width = 64  # of the projections to decays, rates, gates and shares of values
    values_from: Index | None = None  # earlier layer whose values are mixed in (absent: none, as in layer 0)

    @property
    def low_rank(self) -> str:
        return "wag" if self.values_from is None else "wagv"

    @property
    def vectors(self) -> list[str]:
        return [f"x_{one}" for one in "rwkvag"] + ["k_k", "k_a"] + [f"{one}0" for one in self.low_rank.replace("g", "")]

    @property
    def own(self) -> "TimeMixing":
        return self.replace(values_from=None)

    def source(self, layer: int) -> int | None:
        return self.values_from

    def check(self, width: int, causal: bool) -> None:
        if width % self.num_heads:
            invalid("num_heads", f"{self.num_heads} does not divide d_model {width}", "use a divisor of d_model")


def shift(x: Vectors, context: ForwardContext, state: ConvolutionState) -> Vectors:
    """x_{t-1} - x_t; the state then holds each row's last token that is no padding."""
    tokens, newest = after_newest(x.transpose(1, 2), context, state.conv)
    state.conv = newest.to(state.conv.dtype)
    return tokens[:, :, :-1].transpose(1, 2) - x


class TimeMixingModule(nn.Module):
    def __init__(self, mixer: TimeMixing, place: Place) -> None:
        super().__init__()
        self.spec, d, self.heads = mixer, place.d_model, (mixer.num_heads, place.d_model // mixer.num_heads)
        self.r, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        for name in mixer.low_rank:
            activation = {"w": nn.Tanh, "g": nn.Sigmoid}.get(name, nn.Identity)
            down, up = nn.Linear(d, mixer.rank, bias=False), nn.Linear(mixer.rank, d, bias=False)
            self.add_module(f"{name}_low", nn.Sequential(down, activation(), up))
        for name in mixer.vectors:
            self.register_parameter(name, nn.Parameter(torch.empty(d)))
        self.r_k, self.norm = nn.Parameter(torch.empty(self.heads)), nn.GroupNorm(mixer.num_heads, d, eps=64e-5)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Channels look back by different shares and forget at different rates; the rest starts as elsewhere."""
        if bounds := {"x": (0, 1), "w0": (-6, -1), "a0": (0, 0)}.get(name.partition("_")[0]):
            tensor.uniform_(*bounds, generator=generator)
        return bounds is not None

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MatrixState:
        sizes = (math.prod(self.heads), 1), (*self.heads, self.heads[1])
        return MatrixState(*(torch.zeros(batch, *size, dtype=dtype, device=device) for size in sizes))

    def forward(self, x: Vectors, context: ForwardContext, state: MatrixState | None = None) -> Vectors:
        state = self.new_state(len(x), 0, x.dtype, x.device) if state is None else state
        before, exact = shift(x, context, state), torch.promote_types(x.dtype, torch.float32)
        x_r, x_w, x_k, x_v, x_a, x_g = (x + before * getattr(self, f"x_{name}") for name in "rwkvag")
        k, v, a = self.k(x_k), self.v(x_v), torch.sigmoid(self.a0 + self.a_low(x_a))
        if self.spec.values_from is None:
            context.leave(v)
        else:
            v = v + (context.left_by(self.spec.values_from) - v) * torch.sigmoid(self.v0 + self.v_low(x_v))
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid((self.w0 + self.w_low(x_w)).to(exact)))
        inputs = self.r(x_r), w, k * (1 + (a - 1) * self.k_a), v, a, k * self.k_k
        r, w, k, v, a, z = (y.to(exact).unflatten(-1, self.heads) for y in inputs)  # (B, T, H, P)
        z, memory, results = nn.functional.normalize(z, dim=-1), state.memory.to(exact), []
        if context.valid is not None:  # padding leaves the memory as it is
            ends = ~context.valid[..., None, None]
            w, k, z = w.masked_fill(ends, 1.0), k.masked_fill(ends, 0.0), z.masked_fill(ends, 0.0)
        with torch.autocast(x.device.type, enabled=False):  # long sums keep all their bits
            for t in range(x.shape[1]):
                old = memory @ z[:, t, :, :, None]  # (B, H, P, 1): the values at the key
                memory = memory * w[:, t, :, None] - old * (a * z)[:, t, :, None]
                memory = memory + v[:, t, :, :, None] * k[:, t, :, None]
                results.append(memory @ r[:, t, :, :, None])
        state.memory = memory.to(state.memory.dtype)
        y = self.norm(torch.stack(results, dim=1).view(-1, x.shape[2]).to(x.dtype)).view_as(x)
        bonus = ((r * k * self.r_k).sum(-1, keepdim=True) * v).flatten(2).to(x.dtype)
        return self.o((y + bonus) * self.g_low(x_g))


class TimeMixingCost(MixerCost):
    complexity = Complexity("O(T D P)", "O(D P)", "O(D P)")

    def __init__(self, part: TimeMixing, d: Formula) -> None:
        super().__init__(part, d)
        self.head_dim, low = symbol("P", d.value // part.num_heads), 2 * d * symbol("r", part.rank)
        self.sizes = dict.fromkeys("rkvo", d * d) | {f"{name}_low": low for name in part.low_rank}

    def parameters(self) -> Counts:
        return self.sizes | dict.fromkeys((*self.part.vectors, "r_k"), self.d) | {"norm": 2 * self.d}

    def flops(self, work: Work) -> Counts:
        products = {name: 2 * work.tokens * size for name, size in self.sizes.items()}
        return products | {"memory": 4 * work.tokens * self.d * self.head_dim}

    def state(self, length: int) -> int:
        return self.d.value * (1 + self.head_dim.value)

    def saved_activations(self, work: TrainingWork) -> int:  # the memory twice, and some thirty vectors, of each token
        return work.tokens * self.d.value * (2 * self.head_dim.value + 30) * FLOAT32


class ChannelMixing(spec.FeedForward):
    kind: Literal["rwkv7_channel_mixing"] = "rwkv7_channel_mixing"
    d_ff: spec.WideWidth


class ChannelMixingModule(nn.Module):
    def __init__(self, feedforward: ChannelMixing, place: Place) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.empty(place.d_model))
        self.k = nn.Linear(place.d_model, feedforward.d_ff, bias=False)
        self.v = nn.Linear(feedforward.d_ff, place.d_model, bias=False)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> ConvolutionState:
        return ConvolutionState(torch.zeros(batch, self.k.in_features, 1, dtype=dtype, device=device))

    def forward(self, x: Vectors, context: ForwardContext, state: ConvolutionState | None = None) -> Vectors:
        before = shift(x, context, state or self.new_state(len(x), 0, x.dtype, x.device))
        return self.v(torch.relu(self.k(x + before * self.x_k)).square())


archetype.register(TimeMixing, module=TimeMixingModule, cost=TimeMixingCost)
archetype.register(ChannelMixing, module=ChannelMixingModule)
