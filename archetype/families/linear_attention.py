"""Designs of linear attention: RetNet (Sun 2023), GLA, HGRN2, DeltaNet and MiniMax-Text-01."""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.minimax import FULL, LINEAR, minimax
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.linear_attention.spec import ChannelDecay, FixedDecay, LinearAttention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.spec.repeats import repeat

EPS = 1e-6


def linear_decoder(
    *, mixer: Mixer, feedforward: FeedForward, num_layers: int, vocab_size: int = 32_000, **model: Any
) -> Decoder:
    """Build a pre-norm decoder whose layers all have the same mixer. `model` takes fields of `spec.Decoder`."""
    norm = RMSNorm(eps=EPS)
    block = Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=feedforward)
    return Decoder(
        vocab_size=vocab_size, layers=repeat(num_layers, block), final_norm=norm, head=LanguageModelHead(),
        initialization=NormalInitialization(), **model,
    )


def retnet(*, num_heads: int, d_model: int, d_ff: int, **model: Any) -> Decoder:
    """Build a RetNet: rotated queries and keys, values of twice the width, a swish gate (Sun 2023, section 2.3)."""
    mixer = LinearAttention(
        num_heads=num_heads, v_head_dim=2 * d_model // num_heads, position=Rotary(interleaved=True), gate="silu",
        decay=FixedDecay(), norm=RMSNorm(eps=EPS, weight=False),
    )
    return linear_decoder(mixer=mixer, feedforward=MLP(d_ff=d_ff, activation="gelu"), d_model=d_model, **model)


def _gated(mixer: Mixer, d_ff: int, **model: Any) -> Decoder:
    return linear_decoder(mixer=mixer, feedforward=GatedMLP(d_ff=d_ff, activation="silu"), **model)


def gla(*, num_heads: int, d_model: int, rank: int = 16, **model: Any) -> Decoder:
    """Build a GLA decoder: keys of half the width, decays of channels by a projection of low rank (Yang 2023)."""
    key_size, value_size = d_model // (2 * num_heads), d_model // num_heads
    mixer = LinearAttention(
        num_heads=num_heads, head_dim=key_size, v_head_dim=value_size, decay=ChannelDecay(rank=rank),
        norm=RMSNorm(eps=EPS), gate="silu",
    )
    return _gated(mixer, d_model=d_model, **model)


def hgrn2(*, num_heads: int, **model: Any) -> Decoder:
    """Build an HGRN2 decoder, whose keys are what the decay forgets (Qin 2024), without its lower bounds by layer."""
    decay = ChannelDecay(temperature=1.0, bias=False, gives_keys=True)
    mixer = LinearAttention(
        num_heads=num_heads, decay=decay, feature_map="none", norm=RMSNorm(eps=EPS), norm_over="all", scale=1.0
    )
    return _gated(mixer, **model)


def deltanet(*, num_heads: int, d_model: int, **model: Any) -> Decoder:
    """Build a DeltaNet decoder: the delta rule without decay, after short convolutions (Yang 2024)."""
    size = d_model // num_heads
    mixer = GatedDeltaNet(num_heads=num_heads, head_dim=size, v_head_dim=size, decay="none", eps=EPS)
    return _gated(mixer, d_model=d_model, **model)


SMALL: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "d_ff": 172}
# one layer in eight has attention; streams as in DeepNorm, with the factor (2 L)^(1/4)
LARGE = dict(num_layers=80, d_model=6144, num_heads=64, num_kv_heads=8, head_dim=128, d_ff=9216, num_experts=32,
    layer_types=tuple(FULL if layer % 8 == 7 else LINEAR for layer in range(80)), stream_factor=160**0.25,
    context_length=1_048_576, position=Rotary(theta=10_000_000.0, dim=64))  # fmt: skip
FAMILY = Family("linear_attention", {
    **presets("MiniMax 2025, sections 2 and 3", minimax, {"minimax-text-01": LARGE}),
    **tiny(minimax, {"minimax-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=96, num_experts=4,
        layer_types=(LINEAR, FULL), stream_factor=4**0.25)}),
    **tiny(retnet, {"retnet-tiny": SMALL | {"d_ff": 128}}),
    **tiny(gla, {"gla-tiny": SMALL}),
    **tiny(hgrn2, {"hgrn2-tiny": SMALL}),
    **tiny(deltanet, {"deltanet-tiny": SMALL}),
})
