"""Mamba-3: a rotating state space with trapezoidal steps, computed in chunks of matrix products."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import linear_chunk, read_chunks
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.mamba.module import draw_steps
from archetype.parts.mamba3 import spec
from archetype.parts.norm.spec import RMSNorm
from archetype.weights.linear import Linear


@dataclass
class Mamba3State(LayerState):
    """Memory and angles of each head, and the last token's b and x."""

    memory: Float[Tensor, "B H Z P"]
    angle: Float[Tensor, "B H angles"]
    b: Float[Tensor, "B K r Z"]
    x: Float[Tensor, "B H P"]


def turned(x: Float[Tensor, "*dims Z"], angle: Float[Tensor, "*dims2 angles"]) -> Float[Tensor, "*dims Z"]:
    """Turn the first pairs of neighbouring features by an angle each."""
    pairs, cos, sin = x[..., : 2 * angle.shape[-1]].unflatten(-1, (-1, 2)), angle.cos(), angle.sin()
    first, second = pairs[..., 0], pairs[..., 1]
    turned_pairs = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return torch.cat((turned_pairs.flatten(-2), x[..., 2 * angle.shape[-1] :]), dim=-1)


def trapezoid_chunk(
    memory: Float[Tensor, "B H Z P"],
    angle: Float[Tensor, "B H angles"],
    last_b: Float[Tensor, "B H r Z"],
    last_x: Float[Tensor, "B H r P"],
    c: Float[Tensor, "B T H r Z"],
    b: Float[Tensor, "B T H r Z"],
    x: Float[Tensor, "B T H r P"],
    a: Float[Tensor, "B T H"],
    now: Float[Tensor, "B T H"],
    later: Float[Tensor, "B T H"],
    turns: Float[Tensor, "B T H angles"],
    *,
    size: int,
) -> tuple[Tensor, ...]:
    """Read chunks as linear attention over the T r vectors.

    A token is written with weight `now`, and again with the next token's weight `later`, before that token's decay.
    Both are one write here, except for the last token, whose second write is the next pass's.
    """
    rank = b.shape[3]
    angles = _angles(angle, turns, size)
    keys, c = turned(torch.cat((last_b[:, None], b), dim=1), angles), turned(c, angles[:, 1:])  # (B, 1 + T, H, r, Z)
    memory = memory + (later[:, 0, :, None, None] * keys[:, 0].mT) @ last_x
    keys = keys[:, 1:]
    weight = (now + nn.functional.pad(later[:, 1:], (0, 0, 0, 1)))[..., None, None]
    q, k, v = (y.transpose(2, 3).flatten(1, 2) for y in (c, weight * keys, x))  # (B, T r, H, Z or P)
    decays = nn.functional.pad(a[:, :, None], (0, 0, 0, rank - 1)).flatten(1, 2)
    y, memory = linear_chunk(memory, q, k, v, decays, size=size * rank)
    # Of its own token a vector has read itself and those before it, with both weights; all are read with `now` alone.
    read = torch.ones(rank, rank, dtype=x.dtype, device=x.device).tril()
    own = (now[..., None, None] - weight * read) * (c @ keys.mT)  # (B, T, H, r, r)
    y = y.unflatten(1, (-1, rank)).transpose(2, 3) + own @ x
    return y, memory, angles[:, -1, :, 0] % (2.0 * math.pi), b[:, -1], x[:, -1]


def _angles(
    angle: Float[Tensor, "B H angles"], turns: Float[Tensor, "B T H angles"], size: int
) -> Float[Tensor, "B tokens H 1 angles"]:
    # before the first token and after each; a full turn is left out before each chunk, so that no sum grows
    angles = [angle[:, None]]
    for turns_n in turns.split(size, dim=1):
        angles.append(angle[:, None] + turns_n.cumsum(1))
        angle = angles[-1][:, -1] % (2.0 * math.pi)
    return torch.cat(angles, dim=1)[:, :, :, None]


@module_for(spec.Mamba3)
class Mamba3(nn.Module):
    """out_proj(sum_r o_r (y_r + D x_r) silu(z_r)) of each head (Lahoti 2026), computed in at least float32.

    With a rank, x_r, z_r and o_r are x, z and the output times vectors `mimo_x`, `mimo_z` and `mimo_o` of each head.
    """

    # rates, gains and biases, which weight decay must not shrink
    parameter_roles: ClassVar = dict.fromkeys(("D", "b_bias", "c_bias", "mimo_x", "mimo_z", "mimo_o"), "vector")
    probes: ClassVar[Mapping[str, str]] = {
        "x": "B T H P", "b": "B T K r Z", "c": "B T K r Z", "delta": "B T H", "log_decay": "B T H", "share": "B T H"
    }  # fmt: skip
    shown_means: ClassVar = ("delta", "log_decay", "share")

    def __init__(self, mixer: spec.Mamba3, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, heads = mixer, place.layer, mixer.num_heads
        self.in_proj = Linear(place.d_model, sum(mixer.widths), bias=False)
        self.dt_bias, self.D = (nn.Parameter(torch.empty(heads)) for _ in range(2))
        self.b_norm, self.c_norm = (build_norm(RMSNorm(eps=mixer.eps), mixer.state_size) for _ in range(2))
        self.b_bias, self.c_bias = (nn.Parameter(torch.empty(heads, mixer.rank, mixer.state_size)) for _ in range(2))
        if mixer.rank > 1:
            sizes = heads, mixer.rank, mixer.head_dim
            self.mimo_x, self.mimo_z, self.mimo_o = (nn.Parameter(torch.empty(sizes)) for _ in range(3))
        if mixer.norm:
            self.norm = build_norm(RMSNorm(eps=mixer.eps), mixer.inner)
        self.out_proj = Linear(mixer.inner, place.d_model, bias=False)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # steps as in Mamba, all else 1, and the ranks' inputs and outputs as means
        if name == "dt_bias":
            draw_steps(tensor, self.spec.dt_min, self.spec.dt_max, generator)
        else:
            tensor.fill_(1.0 / self.spec.rank if name in ("mimo_x", "mimo_o") else 1.0)
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> Mamba3State:
        mixer, heads = self.spec, self.spec.num_heads
        sizes = (
            (heads, mixer.state_size, mixer.head_dim),
            (heads, mixer.angles),
            (mixer.num_groups, mixer.rank, mixer.state_size),
            (heads, mixer.head_dim),
        )
        return Mamba3State(*(torch.zeros(batch, *size, dtype=dtype, device=device) for size in sizes))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, Mamba3State, x, context, cache)
        mixer, exact = self.spec, torch.promote_types(x.dtype, torch.float32)
        z, u, b, c, steps, rates, shares, angles = self.in_proj(x).split(mixer.widths, dim=-1)
        z, u = (part.to(exact).unflatten(-1, (mixer.num_heads, -1)) for part in (z, u))  # (B, T, H, P)
        delta = nn.functional.softplus(steps.to(exact) + self.dt_bias.to(exact))  # (B, T, H)
        share = torch.sigmoid(shares.to(exact))
        delta = context.fill_padding(delta)  # a step of zero neither decays, writes nor turns
        a = -nn.functional.softplus(rates.to(exact)).clamp(min=mixer.least_rate) * delta
        # the rows of each rank, and in them of each group, as (B, T, K, r, Z)
        rows = (mixer.rank, mixer.num_groups, mixer.state_size)
        b, c = (norm(part.unflatten(-1, rows), context).to(exact).transpose(2, 3) for norm, part in
                ((self.b_norm, b), (self.c_norm, c)))  # fmt: skip
        u, b, c, delta, a, share = context.probes(self, x=u, b=b, c=c, delta=delta, log_decay=a, share=share)
        turns = math.pi * delta[..., None] * torch.tanh(angles.to(exact))[:, :, None]  # (B, T, H, angles)
        of_ranks = self._of_ranks(u)
        states = before.memory.to(exact), before.angle.to(exact), self._of_heads(before.b.to(exact), self.b_bias)
        y, memory, angle, *_ = read_chunks(
            trapezoid_chunk, mixer.chunk_size, (*states, self._of_ranks(before.x.to(exact))),
            self._of_heads(c, self.c_bias), self._of_heads(b, self.b_bias), of_ranks,
            a, share * delta, (1.0 - share) * delta, turns,
        )  # fmt: skip
        newest_b, newest_x = _newest(b, before.b, context), _newest(u, before.x, context)
        state.keep(memory=memory, angle=angle, b=newest_b, x=newest_x)
        return self.out_proj(self._gated(y + self.D.to(exact)[:, None, None] * of_ranks, z).to(x.dtype))

    def _of_heads(
        self, rows: Float[Tensor, "*dims K r Z"], bias: Float[Tensor, "H r Z"]
    ) -> Float[Tensor, "*dims H r Z"]:
        # b or c of each head: its group's, plus the head's bias
        return rows.repeat_interleave(self.spec.num_heads // self.spec.num_groups, dim=-3) + bias.to(rows.dtype)

    def _of_ranks(self, x: Float[Tensor, "*dims H P"]) -> Float[Tensor, "*dims H r P"]:
        return x[..., None, :] * self.mimo_x.to(x.dtype) if self.spec.rank > 1 else x[..., None, :]

    def _gated(self, y: Float[Tensor, "B T H r P"], z: Float[Tensor, "B T H P"]) -> Float[Tensor, "B T HP"]:
        if self.spec.norm:
            norm: Any = self.norm
            weight = norm.weight.to(y.dtype).view(self.spec.num_heads, 1, -1)
            y = nn.functional.rms_norm(y, y.shape[-1:], None, self.spec.eps) * weight
        if self.spec.rank == 1:
            return (y[..., 0, :] * nn.functional.silu(z)).flatten(-2)
        gate = nn.functional.silu(z[..., None, :] * self.mimo_z.to(y.dtype))
        return (y * gate * self.mimo_o.to(y.dtype)).sum(-2).flatten(-2)


def _newest(x: Float[Tensor, "B T *dims"], before: Float[Tensor, "B *dims"], context: ForwardContext) -> Tensor:
    # the last token of each sequence, padding excluded
    if context.num_tokens is None:
        return x[:, -1].clone()  # a view would keep all tokens in memory
    rows, tokens = torch.arange(x.shape[0], device=x.device), torch.cat((before[:, None].to(x.dtype), x), dim=1)
    return tokens[rows, context.num_tokens]
