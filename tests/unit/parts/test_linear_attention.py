"""Linear attention: its settings are the recurrences of the papers, written down step by step here."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, rms_norm, silu
from transformers import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from archetype import spec
from archetype.errors import SpecError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.linear_attention.module import LinearAttention
from tests.helpers.weights import distance, randomize

D, H, P, LENGTH, EXACT = 12, 2, 4, 21, 1e-11
EPS = 1e-5
NORM = spec.RMSNorm(eps=EPS)
GLA = spec.LinearAttention(
    num_heads=H, head_dim=P, v_head_dim=6, decay=spec.ChannelDecay(rank=3), norm=NORM, gate="silu", chunk_size=8
)
MIXERS: dict[str, spec.LinearAttention] = {
    "retention": spec.LinearAttention(
        num_heads=H, head_dim=P, v_head_dim=6, decay=spec.FixedDecay(), position=spec.Rotary(interleaved=True),
        norm=spec.RMSNorm(eps=EPS, weight=False), gate="silu", chunk_size=8,
    ),
    "lightning": spec.LinearAttention(
        num_heads=H, head_dim=P, decay=spec.FixedDecay(form="alibi", factor=0.4), feature_map="silu",
        value_activation="silu", scale=1.0, norm=NORM, norm_over="all", gate="sigmoid", chunk_size=8,
    ),
    "gla": GLA,
    "hgrn2": spec.LinearAttention(
        num_heads=H, head_dim=P, v_head_dim=6, norm=NORM, norm_over="all", chunk_size=8, scale=1.0, conv_kernel=3,
        feature_map="silu",
        decay=spec.ChannelDecay(temperature=1.0, floor=0.3, bias=False, gives_keys=True),
    ),
    "linear attention": spec.LinearAttention(num_heads=3, feature_map="elu", norm=spec.NoNorm(), chunk_size=8),
}  # fmt: skip


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str) -> LinearAttention:
    return randomize(LinearAttention(MIXERS[name], Place(D))).double()


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.unflatten(-1, (count, -1))


def defined(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t, for (B, T, H, ...) each."""
    memory, outputs = torch.zeros(*k[:, 0].shape, v.shape[-1], dtype=v.dtype), []
    for t in range(v.shape[1]):
        memory = a[:, t, :, :, None] * memory + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((memory * q[:, t, :, :, None]).sum(2))
    return torch.stack(outputs, 1)


def retention(part: Any, x: Tensor) -> Tensor:
    """Sun 2023, equations 5 and 8, with the rotation as a product of complex numbers."""
    # angles are rounded to float32 in every model
    angles = torch.arange(x.shape[1])[:, None, None] * (1.0 / 10_000.0 ** (torch.arange(0, P, 2) / P))
    turns = torch.complex(angles.cos().double(), angles.sin().double())
    q, k = (
        torch.view_as_real(torch.view_as_complex(heads(project(x)).unflatten(-1, (-1, 2)).contiguous()) * turns)
        for project in (part.q, part.k)
    )
    decay = torch.tensor([1 - 2.0 ** -(5 + head) for head in range(H)]).double()[:, None].expand(*x.shape[:2], H, P)
    y = defined(q.flatten(-2) / math.sqrt(P), k.flatten(-2), heads(part.v(x)), decay)
    return part.o(rms_norm(y, y.shape[-1:], None, EPS).flatten(-2) * silu(part.gate(x)))


def lightning(part: Any, x: Tensor) -> Tensor:
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / H) for head in range(H)]).double()
    q, k, v = (heads(silu(project(x))) for project in (part.q, part.k, part.v))
    y = defined(q, k, v, (-0.4 * slopes).exp()[:, None].expand(*k.shape)).flatten(-2)
    return part.o(rms_norm(y, y.shape[-1:], part.norm.weight, EPS) * torch.sigmoid(part.gate(x)))


def gla(part: Any, x: Tensor) -> Tensor:
    """Yang 2023, equation 3 and section 4.4."""
    a = heads((logsigmoid(part.a_up(part.a_down(x))) / 16).exp())
    y = defined(heads(part.q(x)) / math.sqrt(P), heads(part.k(x)), heads(part.v(x)), a)
    return part.o(rms_norm(y, y.shape[-1:], part.norm.weight, EPS).flatten(-2) * silu(part.gate(x)))


def hgrn2(part: Any, x: Tensor) -> Tensor:
    """Qin 2024, equation 6, after a convolution of queries and values; keys have no feature map."""
    u = torch.cat((part.q(x), part.v(x)), -1).transpose(1, 2)
    u = nn.functional.conv1d(nn.functional.pad(u, (2, 0)), part.conv.weight, groups=u.shape[1]).transpose(1, 2)
    q, v = u.split((H * P, H * 6), -1)
    a = 0.3 + 0.7 * torch.sigmoid(heads(part.a(x)))
    y = defined(heads(silu(q)), 1 - a, heads(v), a).flatten(-2)
    return part.o(rms_norm(y, y.shape[-1:], part.norm.weight, EPS))


def plain(part: Any, x: Tensor) -> Tensor:
    """As attention without softmax: all pairs at once (Katharopoulos 2020, equation 7)."""
    q, k, v = (heads(project(x), 3).transpose(1, 2) for project in (part.q, part.k, part.v))
    q, k = (1 + nn.functional.elu(y) for y in (q, k))
    return part.o(((q @ k.transpose(2, 3)).tril() @ v / math.sqrt(D // 3)).transpose(1, 2).flatten(-2))


WRITTEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "retention": retention, "lightning": lightning, "gla": gla, "hgrn2": hgrn2, "linear attention": plain,
}  # fmt: skip

CONTROLS = {
    "retention": MIXERS["retention"].replace(decay=spec.NoDecay()),
    "lightning": MIXERS["lightning"].replace(decay=spec.FixedDecay(form="alibi", factor=0.2)),
    "gla": GLA.replace(decay=spec.ChannelDecay(rank=3, temperature=4.0)),
    "hgrn2": MIXERS["hgrn2"].replace(decay=spec.ChannelDecay(temperature=1.0, floor=0.1, bias=False, gives_keys=True)),
    "linear attention": MIXERS["linear attention"].replace(feature_map="relu"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_each_setting_is_its_paper(name: str) -> None:
    part, x = build(name), random(2, LENGTH, D)
    expected = WRITTEN[name](part, x)
    assert distance(part(x, ForwardContext.of(x)), expected) < EXACT
    other = LinearAttention(CONTROLS[name], Place(D)).double()
    other.load_state_dict(part.state_dict())
    assert distance(other(x, ForwardContext.of(x)), expected) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_in_pieces_as_at_once_and_padding_changes_nothing(name: str) -> None:
    part, x = build(name), random(2, 17, D)
    whole = part(x, ForwardContext.of(x))
    for pieces in ([1] * 17, [4, 13], [9, 1, 7]):
        state, outputs, read = part.new_state(2, 17, torch.float64, x.device), [], 0
        size = state.nbytes
        for piece in x.split(pieces, dim=1):
            outputs.append(part(piece, ForwardContext.of(piece, torch.full((2,), read)), state))
            read += piece.shape[1]
        assert distance(torch.cat(outputs, 1), whole) < EXACT and state.nbytes == size
    state, lengths = part.new_state(2, 17, torch.float64, x.device), torch.tensor([9, 4])
    part(x[:, :9], ForwardContext.of(x[:, :9], num_tokens=lengths), state)
    after = torch.stack([x[0, 9:14], x[1, 4:9]])
    y = part(after, ForwardContext.of(after, lengths), state)
    assert distance(y, torch.stack([whole[0, 9:14], whole[1, 4:9]])) < EXACT


@torch.no_grad()
def test_lightning_attention_of_minimax() -> None:
    """In its second layer of three, whose decays are slower; queries, keys and values of a head lie together there."""
    config = MiniMaxConfig(
        hidden_size=D, num_attention_heads=H, head_dim=P, num_hidden_layers=3, block_size=8,
        layer_types=["linear_attention"] * 3,
    )  # fmt: skip
    factor = 1 - 1 / (2 + 1e-5) + 1e-5
    mixer = MIXERS["lightning"].replace(decay=spec.FixedDecay(form="alibi", factor=factor), norm=spec.RMSNorm(eps=1e-6))
    part, theirs = randomize(LinearAttention(mixer, Place(D))).float(), MiniMaxLightningAttention(config, 1)
    tensors = part.state_dict()
    joined = torch.cat([heads(tensors.pop(f"{name}.weight").T).unsqueeze(2) for name in "qkv"], 2).flatten(1).T
    names = {"gate.weight": "output_gate.weight", "o.weight": "out_proj.weight", "norm.weight": "norm.weight"}
    theirs.load_state_dict(
        {"qkv_proj.weight": joined} | {names[name]: tensor for name, tensor in tensors.items()}, strict=False
    )
    x = random(2, 23, D).float()
    expected = theirs(x, None, None)[0]
    assert distance(part(x, ForwardContext.of(x)), expected) < 1e-5
    other = LinearAttention(mixer.replace(decay=spec.FixedDecay(form="alibi")), Place(D))
    other.load_state_dict(part.state_dict())
    assert distance(other(x, ForwardContext.of(x)), expected) > 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gate": "none", "gate_rank": 3}, "gate_rank: needs a gate"),
        ({"position": spec.Alibi()}, "position: alibi positions need attention scores; use rotary, or none"),
        ({"position": spec.Rotary(scaling=spec.DynamicScaling(factor=2.0, original_context_length=8))},
         "dynamic scaling would change keys that are already in the memory"),
        ({"decay": {"kind": "fixed", "form": "linear"}}, "decay.form: 'linear' is not a choice"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        GLA.replace(**fields)
