"""mLSTM, RWKV-4, RWKV-7, channel mixing and Mamba-3: beside transformers, or beside the papers' steps written out."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import RwkvConfig, xLSTMConfig
from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from archetype import spec
from archetype.errors import SpecError
from archetype.families import preset
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.parts.rwkv7.spec import MIXED
from tests.helpers.weights import distance, randomize

D, EXACT, WRONG = 12, 1e-10, 1e-3
PARTS: dict[str, Any] = {
    "mlstm": spec.MLSTM(num_heads=2, head_dim=4, chunk_size=8),
    "mlstm of biases": spec.MLSTM(num_heads=3, head_dim=3, v_head_dim=5, bias=True, gate_softcap=None, chunk_size=4),
    "rwkv4": spec.RWKV4(chunk_size=8),
    "rwkv4, wide": spec.RWKV4(width=18),
    "rwkv7": spec.RWKV7(num_heads=3, decay_rank=3, rate_rank=2, gate_rank=5, chunk_size=8),
    "rwkv7, epsilon": spec.RWKV7(num_heads=2, decay_rank=3, rate_rank=2, gate_rank=5, length_eps=0.3),
    "mamba3": spec.Mamba3(num_heads=4, head_dim=3, state_size=8, num_groups=2, chunk_size=8),
    "mamba3, normed": spec.Mamba3(num_heads=2, head_dim=3, state_size=6, rotary_dim=6, norm=True, chunk_size=4),
    "mamba3 of several vectors": spec.Mamba3(
        num_heads=4, head_dim=3, state_size=8, num_groups=2, rank=3, norm=True, chunk_size=4
    ),
    "channel mixing": spec.ChannelMixing(d_ff=20, receptance=True, mix_of="token"),
    "channel mixing, ungated": spec.ChannelMixing(d_ff=20),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(part: Any, layer: int = 0) -> Any:
    """The module of a part in float64, every tensor random."""
    return randomize(module_class(part)(part, Place(D, layer)).double()).requires_grad_(False)


def silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


# against transformers

MLSTM_NAMES = {"gate": "ogate_preact", "input_gate": "igate_preact", "forget_gate": "fgate_preact",
               "norm": "multihead_norm", "o": "out_proj"}  # fmt: skip
RWKV_NAMES = {
    "r": "receptance", "k": "key", "v": "value", "o": "output", "mix_r": "time_mix_receptance", "mix_k": "time_mix_key",
    "mix_v": "time_mix_value", "decay": "time_decay", "bonus": "time_first", "up": "key", "down": "value",
    "mix": "time_mix_key", "mix_receptance": "time_mix_receptance",
}  # fmt: skip


def renamed(part: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in part.state_dict().items():
        path, dot, kind = name.rpartition(".")
        theirs = f"{names.get(path, path)}.{kind}" if dot else names.get(name, name)
        tensors[theirs] = tensor.view(1, 1, -1) if "time_mix" in theirs else tensor
    return tensors


def their_mlstm(part: Any, x: Tensor) -> Tensor:
    keys, values = part.q.out_features, part.v.out_features
    config = xLSTMConfig(
        hidden_size=D, num_heads=part.spec.num_heads, qk_dim_factor=keys / D, v_dim_factor=values / D, chunk_size=8,
        gate_soft_cap=part.spec.gate_softcap or 1e9, use_bias=part.spec.bias,
    )  # fmt: skip
    theirs = xLSTMLayer(config)
    theirs.load_state_dict(renamed(part, MLSTM_NAMES))
    y: Tensor = theirs.eval()(x)[0]
    return y


def their_rwkv(part: Any, x: Tensor) -> Tensor:
    is_mixer = hasattr(part, "decay")
    inner = part.decay.shape[0] if is_mixer else D
    config = RwkvConfig(hidden_size=D, attention_hidden_size=inner, intermediate_size=20, num_hidden_layers=2)
    theirs = (RwkvSelfAttention if is_mixer else RwkvFeedForward)(config, 0)
    theirs.load_state_dict(renamed(part, RWKV_NAMES))
    y: Tensor = theirs.eval()(x)[0]
    return y


@torch.no_grad()
@pytest.mark.parametrize("name", ["mlstm", "mlstm of biases", "rwkv4", "rwkv4, wide", "channel mixing"])
def test_the_same_as_transformers(name: str) -> None:
    part, x = build(PARTS[name]).float(), random(2, 21, D).float()
    expected = (their_mlstm if "mlstm" in name else their_rwkv)(part, x)
    assert distance(part(x, ForwardContext.of(x)), expected) < 1e-5
    for tensor in (getattr(part, mark) for mark in ("bonus", "mix") if hasattr(part, mark)):
        tensor += 0.3
    if "mlstm" in name:
        part.forget_gate.bias += 1.0
    assert distance(part(x, ForwardContext.of(x)), expected) > WRONG


@torch.no_grad()
def test_large_logits_of_an_mlstm_overflow_nothing() -> None:
    """exp(300) is no number of float32; a sum of such weights over their sum is."""
    part, x = build(PARTS["mlstm of biases"]), random(2, 21, D)
    part.input_gate.bias += 300.0
    for gate in (part.input_gate, part.forget_gate):
        gate.weight *= 20.0
    exact = part(x, ForwardContext.of(x))
    assert exact.isfinite().all()
    assert distance(part.float()(x.float(), ForwardContext.of(x)), exact) < 1e-4


# as the papers write them


def rwkv7(part: Any, x: Tensor, values: Tensor | None = None) -> Tensor:
    """Peng 2025, equations 2 to 19 and 22."""
    b, length, _ = x.shape
    heads = part.spec.num_heads
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    mixed = {name: x + (before - x) * getattr(part, f"mix_{name}") for name in MIXED}
    a = torch.sigmoid(part.rate + part.rate_up(part.rate_down(mixed["rate"])))
    v = part.v(mixed["v"])
    if values is not None:
        v = torch.lerp(
            v, values, torch.sigmoid(part.value_share + part.value_share_up(part.value_share_down(mixed["v"])))
        )
    d = part.decay + part.decay_up(torch.tanh(part.decay_down(mixed["decay"])))
    w = torch.exp(-math.exp(-0.5) * torch.sigmoid(d))
    k = part.k(mixed["k"])
    kappa, replaced = k * part.removed, k * torch.lerp(torch.ones_like(a), a, part.key_rate)
    r, w, k, v, a, kappa = (y.unflatten(-1, (heads, -1)) for y in (part.r(mixed["r"]), w, replaced, v, a, kappa))
    kappa = kappa / (kappa.square().sum(-1, keepdim=True) + part.spec.length_eps).sqrt()
    state, outputs = torch.zeros(b, heads, D // heads, D // heads, dtype=x.dtype), []
    for t in range(length):  # values by keys, as in the paper
        transition = torch.diag_embed(w[:, t]) - kappa[:, t, :, :, None] * (a * kappa)[:, t, :, None]
        state = state @ transition + v[:, t, :, :, None] * k[:, t, :, None]
        outputs.append((state @ r[:, t, :, :, None]).squeeze(-1))
    y = torch.stack(outputs, 1)
    normed = nn.functional.group_norm(y.reshape(-1, D), heads, part.norm.weight, part.norm.bias, part.spec.eps)
    bonus = (r * part.bonus * k).sum(-1, keepdim=True) * v
    gate = part.gate_up(torch.sigmoid(part.gate_down(mixed["gate"])))
    out: Tensor = part.o((normed.view_as(x) + bonus.flatten(2)) * gate)
    return out


def mamba3(part: Any, x: Tensor) -> Tensor:
    """Lahoti 2026: h_t = a_t h_{t-1} + (1 - l_t) d_t a_t B_{t-1} x_{t-1} + l_t d_t B_t x_t, with turned B and C."""
    mixer, heads, rank = part.spec, part.spec.num_heads, part.spec.rank
    z, u, b, c, steps, rates, shares, theta = part.in_proj(x).split(mixer.widths, -1)
    z, u = (y.unflatten(-1, (heads, -1)) for y in (z, u))
    d = nn.functional.softplus(steps + part.dt_bias)
    a = torch.exp(-nn.functional.softplus(rates).clamp(min=mixer.least_rate) * d)
    share = torch.sigmoid(shares)

    def of_heads(y: Tensor, norm: Any, bias: Tensor) -> Tensor:  # (B, T, H, R, Z)
        y = y.unflatten(-1, (rank, mixer.num_groups, -1))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + mixer.eps) * norm.weight
        return y.transpose(2, 3).repeat_interleave(heads // mixer.num_groups, 2) + bias

    b, c = of_heads(b, part.b_norm, part.b_bias), of_heads(c, part.c_norm, part.c_bias)
    vectors = u[:, :, :, None] * (part.mimo_x if rank > 1 else 1.0)
    angle = torch.zeros(len(x), heads, mixer.angles, dtype=x.dtype)
    state, written, outputs = torch.zeros(len(x), heads, mixer.state_size, mixer.head_dim, dtype=x.dtype), 0.0, []
    for t in range(x.shape[1]):
        angle = angle + math.pi * d[:, t, :, None] * torch.tanh(theta[:, t, None])
        turn = torch.polar(torch.ones_like(angle), angle)[:, :, None]

        def turned(y: Tensor, turn: Tensor = turn) -> Tensor:
            first, rest = y[..., : 2 * mixer.angles], y[..., 2 * mixer.angles :]
            pairs = torch.view_as_complex(first.unflatten(-1, (-1, 2)).contiguous()) * turn
            return torch.cat((torch.view_as_real(pairs).flatten(-2), rest), -1)

        of_token = turned(b[:, t]).transpose(2, 3) @ vectors[:, t]
        gain, now = d[:, t, :, None, None], share[:, t, :, None, None]
        decay = a[:, t, :, None, None]
        state = decay * state + (1 - now) * gain * decay * written + now * gain * of_token
        written = of_token
        outputs.append(turned(c[:, t]) @ state)
    y = torch.stack(outputs, 1) + part.D[:, None, None] * vectors
    if mixer.norm:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + mixer.eps) * part.norm.weight.view(heads, 1, -1)
    gate = silu(z[:, :, :, None] * (part.mimo_z if rank > 1 else 1.0))
    y = (y * gate * (part.mimo_o if rank > 1 else 1.0)).sum(3)
    out: Tensor = part.out_proj(y.flatten(2))
    return out


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in PARTS if "mamba3" in name or "rwkv7" in name])
def test_as_the_paper_writes_it(name: str) -> None:
    part, x = build(PARTS[name]), random(2, 21, D)
    written = mamba3 if "mamba3" in name else rwkv7
    expected = written(part, x)
    assert distance(part(x, ForwardContext.of(x)), expected) < EXACT
    # the control: each of these tensors counts
    names = ("c_bias", "dt_bias") if "mamba3" in name else ("removed", "key_rate", "decay", "bonus")
    for tensor in (part.get_parameter(name) for name in names):
        tensor += 0.2
        assert distance(part(x, ForwardContext.of(x)), expected) > WRONG
        tensor -= 0.2


@torch.no_grad()
def test_later_layers_of_rwkv7_mix_in_the_values_of_the_first() -> None:
    first, x = build(PARTS["rwkv7"]), random(2, 21, D)
    later = build(PARTS["rwkv7"].replace(values_from=-1, value_rank=4), layer=1)
    context = ForwardContext.of(x)
    first(x, context)
    context.layer = 1
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    values = first.v(x + (before - x) * first.mix_v)
    assert distance(later(x, context), rwkv7(later, x, values)) < EXACT
    assert distance(later(x, context), rwkv7(later, x, values + 0.1)) > WRONG


@torch.no_grad()
@pytest.mark.parametrize("name", PARTS)
def test_in_pieces_as_at_once_and_padding_changes_nothing(name: str) -> None:
    part, x = build(PARTS[name]), random(2, 17, D)
    whole = part(x, ForwardContext.of(x))
    for pieces in ([1] * 17, [4, 13], [9, 1, 7]):
        state, outputs, read = part.new_state(2, 17, torch.float64, x.device), [], 0
        size = state.nbytes
        for piece in x.split(pieces, dim=1):
            outputs.append(part(piece, ForwardContext.of(piece, torch.full((2,), read)), state))
            read += piece.shape[1]
        assert distance(torch.cat(outputs, 1), whole) < EXACT and state.nbytes == size
    state, lengths = part.new_state(2, 17, torch.float64, x.device), torch.tensor([9, 0])
    y = part(x[:, :9], ForwardContext.of(x[:, :9], num_tokens=lengths), state)
    assert y.isfinite().all()
    after = torch.stack([x[0, 9:14], x[1, :5]])
    y = part(after, ForwardContext.of(after, lengths), state)
    assert distance(y, torch.stack([whole[0, 9:14], whole[1, :5]])) < EXACT


@torch.no_grad()
def test_a_gate_of_a_delta_network_that_is_open_is_none() -> None:
    none = build(spec.GatedDeltaNet(num_heads=2, head_dim=3, v_head_dim=5, gate="none"))
    gated = build(none.spec.replace(gate="sigmoid", gate_bias=True))
    x, tensors = random(2, 9, D), none.state_dict()
    gated.load_state_dict({"gate.weight": 0 * gated.gate.weight, "gate.bias": 0 * gated.gate.bias + 50.0} | tensors)
    assert distance(gated(x, ForwardContext.of(x)), none(x, ForwardContext.of(x))) < EXACT
    gated.gate.bias -= 50.0
    assert distance(gated(x, ForwardContext.of(x)), none(x, ForwardContext.of(x))) > WRONG


def test_what_does_not_fit_is_refused() -> None:
    for assignment, message in {
        "layers[*].mixer={kind: rwkv7, num_heads: 3}": "mixer.num_heads: 3 does not divide d_model 64",
        "layers[1].mixer={kind: rwkv7, num_heads: 4, values_from: 0}": "the mixer of the referenced layer",
        "layers[*].mixer={kind: mlstm, num_heads: 3}": "mixer.num_heads: 3 does not divide d_model 64",
        "layers[*].mixer={kind: mamba3, num_heads: 4, rotary_dim: 5}": "5 of 128 features cannot be rotated in pairs",
        "layers[*].mixer={kind: gated_delta_net, num_heads: 4, gate: none, gate_rank: 2}": "gate_rank: needs a gate",
        "layers[*].mixer={kind: gated_delta_net, num_heads: 4, gate: none, gate_bias: true}": "gate_bias: needs a gate",
        "layers[*].mixer={kind: mamba3, num_heads: 4, num_groups: 3}": "3 does not divide num_heads 4",
    }.items():
        with pytest.raises(SpecError, match=message):
            spec.assign(preset("llama-tiny"), [assignment])
