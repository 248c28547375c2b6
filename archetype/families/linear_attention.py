"""Designs of linear attention: HGRN2, MiniMax-Text-01 and Kimi Linear."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.minimax import FULL, LINEAR, minimax
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.activation.spec import SiTU
from archetype.parts.attention.spec import OutputGate
from archetype.parts.depth_attention.spec import DepthAttention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.linear_attention.spec import ChannelDecay, LinearAttention
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import NoPosition, Rotary
from archetype.parts.router.spec import SigmoidRouter
from archetype.roles.mixer import Mixer

EPS = 1e-6


def linear_decoder(*, mixer: Mixer, d_ff: int, vocab_size: int = 32_000, eps: float = EPS, **model: Any) -> Decoder:
    """Build a pre-norm decoder whose layers all have the same mixer and a gated network. `model` is as in `decoder`."""
    norm = RMSNorm(eps=eps)
    block = Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=GatedMLP(d_ff=d_ff, activation="silu"))
    return decoder((block,), norm=norm, vocab_size=vocab_size, **model)


# keys are 1 - decay (Qin 2024), without its per-layer lower bounds
HGRN2 = LinearAttention(num_heads=4, decay=ChannelDecay(temperature=1.0, bias=False, gives_keys=True),
    feature_map="silu", norm=RMSNorm(eps=EPS), norm_over="all")


def kimi_linear(
    *,
    num_layers: int,
    num_heads: int,
    d_ff: int,
    num_experts: int,
    experts_per_token: int,
    expert_d_ff: int,
    full_layers: tuple[int, ...],
    head_dim: int = 128,
    kv_lora_rank: int = 512,
    rope_dim: int = 64,
    router_scale: float = 2.446,
    network: GatedMLP = GatedMLP(d_ff=1, activation="silu"),
    delta: Mapping[str, Any] = MappingProxyType({}),
    latent: Mapping[str, Any] = MappingProxyType({}),
    num_shared: int = 1,
    latent_width: int | None = None,
    **model: Any,
) -> Decoder:
    """Build a Kimi Linear decoder: delta attention, and latent attention without positions in `full_layers`.

    Args:
        network: form of all networks.
        delta: fields of delta attention that differ.
        latent: fields of latent attention that differ.
        num_shared: number of experts that every token uses.
        latent_width: width of the space in which the experts work, with a norm of their sum.
    """
    norm = RMSNorm(eps=1e-5)
    fields = dict(decay="channel", decay_rank=head_dim, gate="sigmoid", gate_rank=head_dim, eps=1e-5) | dict(delta)
    recurrent = GatedDeltaNet(num_heads=num_heads, head_dim=head_dim, v_head_dim=head_dim, **fields)
    full = LatentAttention(
        num_heads=num_heads, kv_lora_rank=kv_lora_rank, qk_nope_head_dim=head_dim, qk_rope_head_dim=rope_dim,
        v_head_dim=head_dim, position=NoPosition(), **latent,
    )
    experts = MixtureOfExperts(
        num_experts=num_experts, experts_per_token=experts_per_token, expert=network.replace(d_ff=expert_d_ff),
        shared=network.replace(d_ff=num_shared * expert_d_ff), latent_width=latent_width,
        latent_norm=NoNorm() if latent_width is None else norm,
        router=SigmoidRouter(renormalize=True, scale=router_scale, expert_bias=True),
    )
    layers = tuple(
        Block(
            wiring=PreNorm(norm=norm),
            mixer=full if layer in full_layers else recurrent,
            feedforward=experts if layer else network.replace(d_ff=d_ff),
        )
        for layer in range(num_layers)
    )
    return decoder(layers, norm=norm, **({"vocab_size": 163_840} | model))


# Kimi K3: networks with bounds, full gates, low-rank queries, and attention over depth.
K3: dict[str, Any] = {
    "network": GatedMLP(d_ff=1, activation=SiTU(beta=4.0), up_bound=25.0), "num_shared": 2, "router_scale": 1.0,
    "delta": {"decay_bound": -5.0, "gate_rank": None},
}  # fmt: skip


def k3_depth(layers_per_block: int) -> DepthAttention:
    return DepthAttention(layers_per_block=layers_per_block, norm_weight=True, norm_eps=1e-5)


# one layer in eight has attention; streams as in DeepNorm, with the factor (2 L)^(1/4)
LARGE = dict(num_layers=80, d_model=6144, num_heads=64, num_kv_heads=8, head_dim=128, d_ff=9216, num_experts=32,
    layer_types=tuple(FULL if layer % 8 == 7 else LINEAR for layer in range(80)), stream_factor=160**0.25,
    context_length=1_048_576, position=Rotary(theta=10_000_000.0, dim=64))  # fmt: skip
FAMILY = Family("linear_attention", {
    **presets("MiniMax 2025, sections 2 and 3", minimax, {"minimax-text-01": LARGE}),
    **tiny(minimax, {"minimax-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=96, num_experts=4,
        layer_types=(LINEAR, FULL), stream_factor=4**0.25)}),
    **presets("Kimi Team 2025; moonshotai/Kimi-Linear-48B-A3B-Instruct config.json", kimi_linear, {
        "kimi-linear-48b-a3b": dict(num_layers=27, d_model=2304, num_heads=32, d_ff=9216, num_experts=256,
            experts_per_token=8, expert_d_ff=1024, full_layers=(3, 7, 11, 15, 19, 23, 26), context_length=1_048_576),
    }),
    **tiny(kimi_linear, {"kimi-linear-tiny": dict(num_layers=2, num_heads=4, d_ff=172, num_experts=4,
        experts_per_token=2, expert_d_ff=32, full_layers=(1,), head_dim=16, kv_lora_rank=24, rope_dim=8)}),
    **presets("Kimi Team 2026; moonshotai/Kimi-K3 config.json", kimi_linear, {
        "kimi-k3": K3 | dict(num_layers=93, d_model=7168, num_heads=96, d_ff=33_792, num_experts=896,
            experts_per_token=16, expert_d_ff=3072, latent_width=3584, full_layers=(*range(3, 92, 4), 92),
            latent={"query": LowRankQuery(rank=1536), "gate": OutputGate()}, residual=k3_depth(12),
            context_length=1_048_576),
    }),
    **tiny(kimi_linear, {"kimi-k3-tiny": K3 | dict(num_layers=2, num_heads=4, d_ff=172, num_experts=4,
        experts_per_token=2, expert_d_ff=32, latent_width=32, full_layers=(1,), head_dim=16, kv_lora_rank=24,
        rope_dim=8, latent={"query": LowRankQuery(rank=32), "gate": OutputGate()}, residual=k3_depth(1))}),
    **tiny(linear_decoder, {"hgrn2-tiny": dict(num_layers=2, mixer=HGRN2, d_ff=172)}),
})
