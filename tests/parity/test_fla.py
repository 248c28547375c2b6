"""The same vectors as flash-linear-attention 0.6, whose kernels Triton interprets on the processor."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.nn.chunks import linear_chunk
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.parts.depth_attention.module import DepthQuery
from archetype.parts.streams.module import doubly_stochastic
from tests.helpers import fla as library
from tests.helpers.weights import distance, randomize

D, T, CLOSE, WRONG = 32, 21, 1e-5, 1e-3
NORM = spec.RMSNorm(eps=1e-5)
HEADS: dict[str, Any] = {"num_heads": 2, "norm": NORM, "chunk_size": 8}
DELTA: dict[str, Any] = {"num_heads": 4, "head_dim": 8, "v_head_dim": 8, "eps": 1e-5, "chunk_size": 8}
CHANNELS: dict[str, Any] = DELTA | {
    "decay": "channel", "decay_rank": 8, "gate": "sigmoid", "gate_rank": 8, "gate_bias": True,
}  # fmt: skip
THEIR_HEADS: dict[str, Any] = {"hidden_size": D, "num_heads": 2}
THEIR_DELTA: dict[str, Any] = {"hidden_size": D, "num_heads": 4}
THEIR_CHANNELS: dict[str, Any] = THEIR_DELTA | {"head_dim": 8}
RWKV = {"hidden_size": D, "head_dim": 8, "num_hidden_layers": 2, "norm_eps": 1e-4, "decay_low_rank_dim": 3,
        "a_low_rank_dim": 4, "gate_low_rank_dim": 5, "v_low_rank_dim": 6}  # fmt: skip
MAMBA = {"hidden_size": D, "expand": 1, "head_dim": 8, "state_size": 8, "n_groups": 2}

# name: our mixer, another that must differ, their layer, its fields
LAYERS: dict[str, tuple[Any, dict[str, Any], str, dict[str, Any]]] = {
    "retention": (
        spec.LinearAttention(**HEADS, v_head_dim=D, position=spec.Rotary(), decay=spec.FixedDecay(), gate="silu"),
        {"position": spec.Rotary(interleaved=True)},
        "multiscale_retention.MultiScaleRetention",
        THEIR_HEADS,
    ),
    "GLA": (
        spec.LinearAttention(**HEADS, head_dim=8, v_head_dim=16, decay=spec.ChannelDecay(rank=16), gate="silu"),
        {"decay": spec.ChannelDecay(rank=16, temperature=8.0)},
        "gla.GatedLinearAttention",
        THEIR_HEADS,
    ),
    "GLA with one decay per head": (
        spec.LinearAttention(
            **HEADS, conv_kernel=4, feature_map="silu", value_activation="silu", decay=spec.HeadDecay(), gate="silu"
        ),
        {"decay": spec.HeadDecay(temperature=8.0)},
        "simple_gla.SimpleGatedLinearAttention",
        THEIR_HEADS,
    ),
    "HGRN2": (
        spec.LinearAttention(
            **HEADS, norm_over="all", feature_map="silu",
            decay=spec.ChannelDecay(temperature=1.0, bias=False, gives_keys=True),
        ),
        {"feature_map": "none"},
        "hgrn2.HGRN2Attention",
        {"hidden_size": D, "expand_ratio": 16},
    ),
    "linear attention": (
        spec.LinearAttention(**HEADS, feature_map="elu"),
        {"feature_map": "relu"},
        "linear_attn.LinearAttention",
        THEIR_HEADS | {"feature_map": "elu"},
    ),
    "DeltaNet": (
        spec.GatedDeltaNet(**DELTA, decay="none"),
        {"negative_eigenvalues": True},
        "delta_net.DeltaNet",
        THEIR_DELTA | {"use_gate": True},
    ),
    "DeltaNet without a gate": (
        spec.GatedDeltaNet(**DELTA, decay="none", gate="none"),
        {"eps": 0.1},
        "delta_net.DeltaNet",
        THEIR_DELTA,
    ),
    "gated delta net": (
        spec.GatedDeltaNet(**DELTA | {"v_head_dim": 16, "num_key_heads": 2}),
        {"gate": "sigmoid"},
        "gated_deltanet.GatedDeltaNet",
        THEIR_DELTA | {"num_heads": 2, "num_v_heads": 4, "head_dim": 8},
    ),
    "gated delta net with negative eigenvalues": (
        spec.GatedDeltaNet(**DELTA, negative_eigenvalues=True),
        {"negative_eigenvalues": False},
        "gated_deltanet.GatedDeltaNet",
        THEIR_DELTA | {"head_dim": 8, "expand_v": 1.0, "allow_neg_eigval": True},
    ),
    "delta attention": (spec.GatedDeltaNet(**CHANNELS), {"gate": "silu"}, "kda.KimiDeltaAttention", THEIR_CHANNELS),
    "bounded delta attention": (
        spec.GatedDeltaNet(**CHANNELS, decay_bound=-5.0),
        {"decay_bound": -4.0},
        "kda.KimiDeltaAttention",
        THEIR_CHANNELS | {"safe_gate": True, "lower_bound": -5.0},
    ),
    "RWKV-7": (
        spec.RWKV7(num_heads=4, decay_rank=3, rate_rank=4, gate_rank=5, eps=8e-4, chunk_size=8),
        {"eps": 1e-2},
        "rwkv7.RWKV7Attention",
        RWKV | {"layer_idx": 0},
    ),
    "Mamba-3": (
        spec.Mamba3(num_heads=4, head_dim=8, state_size=8, num_groups=2, chunk_size=8),
        {"least_rate": 1.0},
        "mamba3.Mamba3",
        MAMBA,
    ),
    "Mamba-3 with a norm": (
        spec.Mamba3(num_heads=4, head_dim=8, state_size=8, num_groups=2, rotary_dim=8, norm=True, chunk_size=8),
        {"eps": 0.1},
        "mamba3.Mamba3",
        MAMBA | {"rope_fraction": 1.0, "is_outproj_norm": True},
    ),
    "Mamba-3 of several vectors": (
        spec.Mamba3(num_heads=4, head_dim=8, state_size=8, num_groups=2, rank=3, norm=True, chunk_size=8),
        {"least_rate": 1.0},
        "mamba3.Mamba3",
        MAMBA | {"is_mimo": True, "mimo_rank": 3, "is_outproj_norm": True},
    ),
    "Mamba-3 of several vectors without a norm": (
        spec.Mamba3(num_heads=4, head_dim=8, state_size=8, num_groups=2, rank=2, rotary_dim=8, chunk_size=8),
        {"least_rate": 1.0},
        "mamba3.Mamba3",
        MAMBA | {"is_mimo": True, "mimo_rank": 2, "rope_fraction": 1.0},
    ),
    "native sparse attention": (
        spec.NativeSparseAttention(
            num_heads=32, num_kv_heads=2, head_dim=8, window=6, shared_keys=True,
            compression=spec.BlockCompression(block=8), selection=spec.BlockSelection(block=8, top_blocks=4),
        ),
        {"window": 5},
        "nsa.NativeSparseAttention",
        {"hidden_size": D, "num_heads": 32, "num_kv_heads": 2, "head_dim": 8, "block_size": 8, "block_counts": 4,
         "window_size": 6},
    ),
}  # fmt: skip

# our names of modules and tensors, and theirs where they are not alike
NAMES: dict[str, dict[str, str]] = {
    "LinearAttention": {
        "q": "q_proj", "k": "k_proj", "v": "v_proj", "a": "gk_proj", "a_down": "gk_proj.0", "a_up": "gk_proj.1",
        "gate": "g_proj", "norm": "g_norm_swish_gate", "o": "o_proj",
    },
    "GatedDeltaNet": {
        "q": "q_proj", "k": "k_proj", "v": "v_proj", "a": "a_proj", "a_down": "f_proj.0", "a_up": "f_proj.1",
        "b": "b_proj", "gate": "g_proj", "gate_down": "g_proj.0", "gate_up": "g_proj.1", "norm": "o_norm",
        "o": "o_proj",
    },
    "RWKV7": {
        "r": "r_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "norm": "g_norm", "decay_down": "w_lora.lora.0",
        "decay_up": "w_lora.lora.2", "decay": "w_lora.lora.2.bias", "rate_down": "a_lora.lora.0",
        "rate_up": "a_lora.lora.2", "rate": "a_lora.lora.2.bias", "gate_down": "g_lora.lora.0",
        "gate_up": "g_lora.lora.2", "value_share_down": "v_lora.lora.0", "value_share_up": "v_lora.lora.2",
        "value_share": "v_lora.lora.2.bias", "removed": "k_k", "key_rate": "k_a", "bonus": "r_k",
        "mix_r": "x_r", "mix_decay": "x_w", "mix_k": "x_k", "mix_v": "x_v", "mix_rate": "x_a", "mix_gate": "x_g",
    },
    "Mamba3": {"b_norm": "B_norm", "c_norm": "C_norm", "b_bias": "B_bias", "c_bias": "C_bias"},
    "NativeSparseAttention": {
        "q": "q_proj", "k.selected": "k_proj", "v.selected": "v_proj", "gate": "g_proj", "o": "o_proj",
    },
}  # fmt: skip
OTHER_NAMES: dict[str, dict[str, str]] = {
    "HGRN2": {"a": "f_proj", "v": "i_proj", "norm": "g_norm"},
    "linear attention": {"norm": "norm"},
}


@pytest.fixture(scope="module")
def fla() -> Iterator[library.FLA]:
    if not (library.INSTALLED / "fla").exists():
        pytest.skip("needs flash-linear-attention (make fla)")
    with library.opened() as opened:
        yield opened


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(part: Any, layer: int = 0) -> Any:
    """The module of a part in float64, every tensor random."""
    return randomize(module_class(part)(part, Place(D, layer=layer)).double()).requires_grad_(False)


def theirs(name: str, part: nn.Module) -> dict[str, Tensor]:
    """The tensors of our module under their names."""
    names = NAMES[type(part).__name__] | OTHER_NAMES.get(name, {})
    tensors: dict[str, Tensor] = {}
    for key, value in part.state_dict().items():
        path, dot, kind = key.rpartition(".")
        tensors[f"{names.get(path, path)}.{kind}" if dot else names.get(key, key)] = value.float()
    for key in [key for key in tensors if key.startswith("x_")]:
        tensors[key] = tensors[key].view(1, 1, -1)
    if "mimo_x" in tensors:  # with several vectors, they turn the features i and i + Z / 2
        mixer: Any = part.spec
        order = torch.arange(mixer.state_size).unflatten(0, (-1, 2)).T.flatten()
        for key in ("B_norm.weight", "C_norm.weight", "B_bias", "C_bias"):
            tensors[key] = tensors[key][..., order]
        rows = [*tensors["in_proj.weight"].split(mixer.widths)]
        rows[2:4] = [each.unflatten(0, (-1, mixer.state_size))[:, order].flatten(0, 1) for each in rows[2:4]]
        tensors["in_proj.weight"] = torch.cat(rows)
    if "conv.weight" in tensors:  # one convolution for each of queries, keys and values
        split = [tensors[f"{each}_proj.weight"].shape[0] for each in "qkv"]
        for each, weight in zip("qkv", tensors.pop("conv.weight").split(split), strict=True):
            tensors[f"{each}_conv1d.weight"] = weight
    return tensors


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_layers(fla: library.FLA, name: str) -> None:
    mixer, changes, layer, fields = LAYERS[name]
    part, x = build(mixer), random(1, 41, D) if "sparse" in name else random(2, T, D)
    expected, *_ = fla.layer(layer, fields, theirs(name, part), x)
    assert distance(part(x.double(), ForwardContext.of(x)), expected) < CLOSE
    control = module_class(mixer)(mixer.replace(**changes), Place(D)).double()
    control.load_state_dict(part.state_dict())
    assert distance(control(x.double(), ForwardContext.of(x)), expected) > WRONG


@torch.no_grad()
def test_lower_bounds_of_hgrn2(fla: library.FLA) -> None:
    decay = spec.ChannelDecay(temperature=1.0, bias=False, gives_keys=True, floor=0.3)
    part, x = build(LAYERS["HGRN2"][0].replace(decay=decay)), random(2, T, D)
    fields = LAYERS["HGRN2"][3] | {"layer_idx": 1}
    for bound, close in ((0.3, True), (0.2, False)):
        bounds = torch.full((D,), bound)
        expected, *_ = fla.layer("hgrn2.HGRN2Attention", fields, theirs("HGRN2", part), x, lower_bound=bounds)
        difference = distance(part(x.double(), ForwardContext.of(x)), expected)
        assert difference < CLOSE if close else difference > WRONG


@torch.no_grad()
def test_later_layers_of_rwkv7_mix_in_the_values_of_the_first(fla: library.FLA) -> None:
    first, x = build(LAYERS["RWKV-7"][0]), random(2, T, D)
    part = build(LAYERS["RWKV-7"][0].replace(values_from=0, value_rank=6), layer=1)
    context = ForwardContext.of(x)
    first(x.double(), context)
    values = context.left_by(0)
    context.layer = 1
    ours = part(x.double(), context)
    *_, of_first = fla.layer("rwkv7.RWKV7Attention", RWKV | {"layer_idx": 0}, theirs("RWKV-7", first), x)
    assert distance(values, of_first) < CLOSE
    for first_values, close in ((of_first, True), (of_first + 0.1, False)):
        layer = RWKV | {"layer_idx": 1}
        expected, *_ = fla.layer("rwkv7.RWKV7Attention", layer, theirs("RWKV-7", part), x, v_first=first_values)
        assert distance(ours, expected) < CLOSE if close else distance(ours, expected) > WRONG


@torch.no_grad()
def test_their_lightning_attention_has_other_decays(fla: library.FLA) -> None:
    # of head h in layer l of L: exp(-8 h / H (1 - l / L)); the published models have the slopes of ALiBi
    heads, layer, layers = 4, 1, 3
    q, k, v = (random(2, T, heads, 8, seed=seed) for seed in range(3))
    expected, _ = fla.call("lightning_attn.fused_recurrent_lightning_attn", q, k, v, layer, layers, scale=1.0)
    factor = 1 - layer / layers
    alibi = torch.tensor(spec.FixedDecay(form="alibi", factor=factor).rates(heads))
    for rates, close in ((8 / heads * factor * torch.arange(heads), True), (alibi, False)):
        ours, _ = linear_chunk(torch.zeros(2, heads, 8, 8), q, k, v, -rates.expand(1, T, heads), size=T)
        assert distance(ours, expected) < CLOSE if close else distance(ours, expected) > WRONG


@torch.no_grad()
def test_attention_over_depth(fla: library.FLA) -> None:
    module = randomize(DepthQuery(spec.DepthAttention(norm_weight=True), D)).requires_grad_(False)
    sources, weight = random(4, 2, T, D), module.norm_weight
    for query, close in ((module.query[0], True), (-module.query[0], False)):
        expected = fla.call("attnres.naive.naive_attnres", query, sources.unbind(), weight)
        difference = distance(module(sources.movedim(0, 2)), expected)
        assert difference < CLOSE if close else difference > WRONG


@torch.no_grad()
def test_doubly_stochastic_matrices(fla: library.FLA) -> None:
    # theirs begin with columns and end with rows: ours of the transposed matrix
    logits = 3.0 * random(5, 4, 4)
    expected = fla.call("utils.sinkhorn.naive.naive_sinkhorn", logits, 3)
    assert distance(doubly_stochastic(logits.mT.double(), 3, 0.0).mT, expected) < CLOSE
    assert distance(doubly_stochastic(logits.double(), 3, 0.0), expected) > WRONG


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_to_the_keys_of_an_index(fla: library.FLA, kv_heads: int) -> None:
    index = spec.LightningIndex(top_k=5, num_heads=16, head_dim=8, norm=spec.NoNorm())  # hardly ever all negative
    mixer = spec.Attention(num_heads=4, num_kv_heads=kv_heads, index=index)
    part, x = build(mixer), random(2, T, D)
    context = ForwardContext.of(x)
    ours = part(x.double(), context)
    q, k, v, q_index, k_index, weights = (
        project(x.double()).float()
        for project in (part.q, part.k, part.v, part.index.q, part.index.k, part.index.weights)
    )
    q, k, v = (y.unflatten(-1, (-1, D // 4)) for y in (q, k, v))
    q_index = q_index.unflatten(-1, (16, 8))
    for top_k, close in ((5, True), (6, False)):
        expected = fla.call("dsa.naive.naive_dsa", q, k, v, q_index, k_index, weights, topk=top_k)
        difference = distance(ours, part.o(expected.double().flatten(2)))
        assert difference < CLOSE if close else difference > WRONG
