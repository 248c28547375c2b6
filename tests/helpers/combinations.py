"""Every pair of norm, position, wiring, feed-forward, mixer, pattern and score, in models of one layer that writes."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.models.build import build
from archetype.models.causal import CausalModel
from tests.helpers.examples import first_of_each
from tests.helpers.pairwise import Combination, pairwise
from tests.helpers.strategies import CONTEXT, VOCABULARY
from tests.helpers.weights import randomize

EXACT = 1e-5  # of the logits' largest magnitude

NORMS: dict[str, spec.Norm] = {
    "layer": spec.LayerNorm(),
    "rms": spec.RMSNorm(),
    "offset": spec.RMSNorm(unit_offset=True),
    "l2": spec.L2Norm(),
    "gated-rms": spec.GatedRMSNorm(rank=3),
    "dynamic-tanh": spec.DynamicTanh(),
    "batch": spec.BatchNorm(),
    "no-norm": spec.NoNorm(),
}
ADDED: dict[str, spec.EmbeddingPosition] = {
    "nothing-added": spec.NoPosition(), "learned": spec.Learned(), "sinusoidal": spec.Sinusoidal(),
}  # fmt: skip
LLAMA3 = spec.Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8)
LONGROPE = spec.LongRopeScaling(
    short_factors=(1.0, 2.0), long_factors=(2.0, 4.0), original_context_length=CONTEXT, attention_factor=1.2
)
POSITIONS: dict[str, spec.MixerPosition] = {
    "no-position": spec.NoPosition(),
    "rotary": spec.Rotary(),
    "interleaved": spec.Rotary(interleaved=True),
    "partial": spec.Rotary(dim=2),
    "linear": spec.Rotary(scaling=spec.LinearScaling(factor=4.0)),
    "dynamic": spec.Rotary(scaling=spec.DynamicScaling(factor=4.0, original_context_length=CONTEXT)),
    "yarn": spec.Rotary(scaling=spec.YarnScaling(factor=4.0, original_context_length=8)),
    "llama3": spec.Rotary(scaling=LLAMA3),
    "longrope": spec.Rotary(dim=4, scaling=LONGROPE),
    "proportional": spec.Rotary(scaling=spec.ProportionalScaling(share=0.5)),
    "alibi": spec.Alibi(),
    "relative": spec.RelativeBias(num_buckets=8, max_distance=12),
}
PATTERNS: dict[str, spec.Pattern] = {
    "full": spec.Full(),
    "window": spec.Window(size=5),
    "chunked": spec.Chunked(size=3),
    "strided": spec.Strided(stride=3),
    "fixed": spec.Fixed(stride=4, num_summary=2),
    "global-window": spec.GlobalWindow(size=3, num_global_tokens=2),
}
SCORES: dict[str, dict[str, Any]] = {
    "dot": {},
    "capped": {"softcap": 1.5, "scale": 0.7},
    "normed": {"qk_norm": spec.RMSNorm()},
    "sinks": {"sinks": True},
    "gated": {"gate": spec.OutputGate(), "sinks": True, "softcap": 2.0},
    "gated-heads": {
        "gate": spec.OutputGate(per="head", activation="softplus"),
        "query_scale": spec.QueryScale(beta=0.5, length=3),
    },
    "additive": {"score": "additive"},
    "blocks": {"index": spec.BlockIndex(block=3, top_blocks=2, local_blocks=1, num_heads=1, head_dim=4)},
    "pools": {"index": spec.PoolIndex(pool=3, top_pools=2, num_heads=8, head_dim=4)},
    "moba": {
        "index": spec.BlockIndex(
            block=2,
            top_blocks=2,
            num_heads=4,
            head_dim=4,
            pooling="mean",
            norm=spec.NoNorm(),
            loss_weight=0.0,
            own_projections=False,
        )
    },
    "differential": {"differential": spec.Differential()},
    "softpick": {"softmax": "softpick"},
    "off-by-one": {"softmax": "off_by_one", "softcap": 2.0},
    "convolved": {"convolutions": spec.AttentionConvolutions(at=("v", "input", "k", "output"), kernel=3)},
    "values": {"v_head_dim": 5, "value_norm": spec.LayerNorm(), "value_scale": 0.7},
    "keys-as-values": {"keys_as_values": True, "qk_norm": spec.RMSNorm(), "value_norm": spec.RMSNorm(weight=False)},
}
LATENT = spec.LatentAttention(num_heads=2, kv_lora_rank=3, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=5)
MIXERS: dict[str, spec.Mixer] = {
    "gated-latent": LATENT.replace(
        gate=spec.OutputGate(), sinks=True, query_scale=spec.QueryScale(beta=0.5, length=3), position=spec.NoPosition()
    ),
    "compressed": spec.CompressedAttention(
        num_heads=2,
        head_dim=6,
        rotary_dim=4,
        query_rank=3,
        window=3,
        groups=2,
        group_rank=3,
        pooling=spec.Pooling(rate=2, overlap=True, index=spec.PooledIndex(top_k=2, num_heads=2, head_dim=4)),
    ),
    "native-sparse": spec.NativeSparseAttention(
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        v_head_dim=3,
        compression=spec.BlockCompression(block=4, stride=2, hidden=5),
        selection=spec.BlockSelection(block=2, top_blocks=3, local_blocks=1),
        window=3,
    ),
    "latent": LATENT,  # so narrow that the latents are looked at even in a whole text
    "wide-latent": LATENT.replace(kv_lora_rank=12, query=spec.LowRankQuery(rank=5)),  # expanded there
    "rnn": spec.RNN(),
    "lstm": spec.LSTM(),
    "gru": spec.GRU(),
    "mamba": spec.Mamba(state_size=3, conv_kernel=3),
    "mamba2": spec.Mamba2(num_heads=4, head_dim=3, state_size=3, num_groups=2, conv_kernel=3, chunk_size=4),
    "delta-net": spec.GatedDeltaNet(num_heads=4, num_key_heads=2, head_dim=3, v_head_dim=5, chunk_size=4),
    "delta-net-of-channels": spec.GatedDeltaNet(
        num_heads=2,
        head_dim=3,
        v_head_dim=5,
        chunk_size=4,
        decay="channel",
        decay_rank=2,
        decay_bound=-5.0,
        gate="sigmoid",
        gate_rank=2,
    ),
    "retention": spec.LinearAttention(
        num_heads=2,
        head_dim=4,
        v_head_dim=6,
        decay=spec.FixedDecay(),
        position=spec.Rotary(),
        gate="silu",
        chunk_size=4,
    ),
    "gla": spec.LinearAttention(
        num_heads=2,
        head_dim=3,
        decay=spec.ChannelDecay(rank=2, floor=0.1),
        conv_kernel=3,
        feature_map="silu",
        qk_norm=spec.RMSNorm(),
        norm_over="all",
        chunk_size=4,
    ),
    "rg-lru": spec.RGLRU(num_heads=2, width=6, chunk_size=4),
    "mlstm": spec.MLSTM(num_heads=2, head_dim=3, chunk_size=4),
    "rwkv4": spec.RWKV4(width=6, chunk_size=4),
    "rwkv7": spec.RWKV7(num_heads=2, decay_rank=2, rate_rank=2, gate_rank=3, chunk_size=4),
    "mamba3": spec.Mamba3(num_heads=4, head_dim=3, state_size=5, num_groups=2, rank=2, norm=True, chunk_size=4),
    "short-convolution": spec.ShortConvolution(),
}
GATED = spec.GatedMLP(d_ff=spec.EightThirds(multiple_of=2), activation="silu")
MIXERS["mixers-together"] = spec.MixersTogether(
    parts=(MIXERS["wide-latent"], MIXERS["mamba2"], MIXERS["lstm"]),
    scales=(0.5, 1.0, 2.0),
    input_scales=(1.0, 0.5, 1.0),
)
FEEDFORWARDS: dict[str, spec.FeedForward] = {
    "mlp": spec.MLP(d_ff=12, activation="gelu_tanh", bias=True),
    "gated": GATED,
    "experts": spec.MixtureOfExperts(num_experts=4, experts_per_token=2, expert=GATED),
    "idle-experts": spec.MixtureOfExperts(
        num_experts=4, experts_per_token=3, expert=GATED, idle=2, shared=spec.MLP(
            d_ff=9, activation="xielu"
        ), router=spec.SqrtSoftplusRouter(),
    ),
    "grouped-experts": spec.MixtureOfExperts(
        num_experts=6, experts_per_token=2, expert=spec.MLP(d_ff=9, activation="relu", bias=True), shared=GATED,
        router=spec.SigmoidRouter(renormalize=True), groups=spec.ExpertGroups(num_groups=3, groups_per_token=2),
    ),
    "networks-together": spec.FeedForwardsTogether(
        parts=(GATED, spec.MLP(d_ff=10, activation="relu")), scales="learned"
    ),
    "n-gram-memory": spec.NgramMemory(rows=17, row_width=3, heads=2, conv_kernel=2),
    "canon": GATED.replace(convolutions=spec.NetworkConvolutions()),
    "poly-norm": GATED.replace(activation=spec.PolyNorm()),
    "channel-mixing": spec.ChannelMixing(d_ff=12, receptance=True, mix_of="token"),
    "none": spec.NoFeedForward(),
}  # fmt: skip
AXES: dict[str, tuple[str, ...]] = {
    "mixer": ("attention", *MIXERS),
    "position": tuple(POSITIONS),
    "pattern": tuple(PATTERNS),
    "score": tuple(SCORES),
    "kv_heads": ("1", "2", "4"),
    "norm": tuple(NORMS),
    "added": tuple(ADDED),
    "wiring": ("pre", "post", "sandwich", "interpolated", "parallel", "parallel-shared", "plain"),
    "feedforward": tuple(FEEDFORWARDS),
}
DEFAULTS = {"position": "no-position", "pattern": "full", "score": "dot", "kv_heads": "2"}  # of what is no attention


def settled(c: Combination) -> Combination | None:
    """The combination, without what belongs to attention where there is none; None where choices contradict."""
    if c["mixer"] != "attention":
        c = c | DEFAULTS
    additive, rotary = c["score"] == "additive", isinstance(POSITIONS[c["position"]], spec.Rotary)
    contradictions = (
        c["wiring"].startswith("parallel") and c["feedforward"] == "none",
        additive and (rotary or c["pattern"] != "full"),
        c["score"] in ("blocks", "pools", "moba") and c["pattern"] != "full",  # which selects among all earlier keys
        c["score"] == "differential" and c["kv_heads"] == "1",  # whose heads are pairs
        (c["position"] == "alibi" or c["score"] == "keys-as-values") and c["pattern"] == "global-window",
    )
    return None if any(contradictions) else c


def combined(combination: Combination) -> spec.Decoder:
    """A decoder of one combination."""
    c = DEFAULTS | {"mixer": "attention", "norm": "rms", "added": "nothing-added", "wiring": "pre"} | combination
    norm = NORMS[c["norm"]]
    kinds: dict[str, spec.Wiring] = {
        "pre": spec.PreNorm(norm=norm),
        "post": spec.PostNorm(norm=norm),
        "sandwich": spec.SandwichNorm(norm=norm),
        "interpolated": spec.Interpolated(norm=norm, rate=0.5),
        "parallel": spec.ParallelResidual(norm=norm),
        "parallel-shared": spec.ParallelResidual(norm=norm, shared_norm=True),
        "plain": spec.Plain(),
    }
    biases = spec.ProjectionBiases(q=True, v="keys_as_values" not in SCORES[c["score"]])
    attention = spec.Attention(
        num_heads=4, num_kv_heads=int(c["kv_heads"]), head_dim=4, bias=biases,
        position=POSITIONS[c["position"]], pattern=PATTERNS[c["pattern"]], **SCORES[c["score"]],
    )  # fmt: skip
    block = spec.Block(
        wiring=kinds[c["wiring"]],
        mixer=MIXERS.get(c["mixer"], attention),
        feedforward=FEEDFORWARDS[c.get("feedforward", "gated")],
    )
    return spec.Decoder(
        vocab_size=VOCABULARY, context_length=CONTEXT, d_model=8, layers=(block,), final_norm=norm,
        embedding=spec.Embedding(position=ADDED[c["added"]]),
    )  # fmt: skip


def _name(combination: Combination) -> str:
    ours = {axis: choice for axis, choice in combination.items() if DEFAULTS.get(axis) != choice}
    return " ".join(f"{axis}-{choice}" if axis == "kv_heads" else choice for axis, choice in ours.items())


COMBINATIONS = pairwise(AXES, settled)
GRID = [pytest.param(combined(combination), id=_name(combination)) for combination in COMBINATIONS]
# each choice of each axis in every run, every pair of them in the soak
SHARE = [
    pytest.param(*one.values, id=one.id, marks=share.marks)
    for one, share in zip(GRID, first_of_each(lambda combination: combination.items(), COMBINATIONS), strict=True)
]


def hybrid() -> spec.Decoder:
    """State spaces, a window, a recurrence, experts, latents and a full view, in one stack."""
    kinds = ("mamba", "attention", "lstm", "wide-latent", "attention", "gru")
    patterns, feedforwards = ("full", "window", "full", "full", "full", "full"), tuple(FEEDFORWARDS)
    layers = [
        combined({"mixer": kind, "pattern": pattern, "position": "rotary", "feedforward": feedforwards[index % 6]})
        for index, (kind, pattern) in enumerate(zip(kinds, patterns, strict=True))
    ]
    return layers[0].replace(layers=tuple(layer for decoder in layers for layer in decoder.layers))


@cache
def model_of(drawn: spec.CausalSpec) -> CausalModel:
    """The model of a specification, every tensor random, ready to evaluate.

    In float64, because a norm of vectors that are nearly equal makes any rounding of theirs large.
    """
    model = build(drawn).double()
    randomize(model)
    return model.requires_grad_(False)


def text(batch: int, length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (batch, length), generator=generator)


def padded(rows: list[Tensor], width: int = 0, filler: int = 7) -> Tensor:
    """Rows of different lengths as one batch; what stands in the padding is a token like any other."""
    width = max(width, *(row.shape[0] for row in rows))
    return torch.stack([torch.cat((row, row.new_full((width - row.shape[0],), filler))) for row in rows])


def rows_of(lengths: list[int], seed: int = 0) -> list[Tensor]:
    """Random rows of these lengths."""
    return [text(1, length, seed + index)[0] for index, length in enumerate(lengths)]
