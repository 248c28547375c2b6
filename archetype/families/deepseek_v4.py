"""DeepSeek-V4 (DeepSeek-AI 2026): windows and pooled keys, residual streams, and experts by token id in some layers.

Published folders are inferred from their files.
"""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.compressed_attention.spec import CompressedAttention, PooledIndex, Pooling
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary, YarnScaling
from archetype.parts.router.spec import HashRouter, SqrtSoftplusRouter
from archetype.parts.streams.spec import Streams

NEAR = Rotary(theta=10_000.0, interleaved=True)  # of layers with only a sliding window
FAR = Rotary(
    theta=160_000.0,
    interleaved=True,
    scaling=YarnScaling(factor=16.0, original_context_length=65_536, attention_factor=1.0),
)


def deepseek_v4(
    *,
    rates: tuple[int, ...],
    num_heads: int,
    groups: int,
    query_rank: int,
    num_experts: int,
    expert_d_ff: int,
    top_k: int,
    router_scale: float,
    experts_per_token: int = 6,
    num_hashed: int = 3,
    head_dim: int = 512,
    rotary_dim: int = 64,
    window: int = 128,
    group_rank: int = 1024,
    index_heads: int = 64,
    index_dim: int = 128,
    limit: float = 10.0,
    num_streams: int = 4,
    near: Rotary = NEAR,
    far: Rotary = FAR,
    eps: float = 1e-6,
    **model: Any,
) -> Decoder:
    """Build a DeepSeek-V4 decoder.

    Args:
        rates: positions per pooled key in each layer (0: only a sliding window); small rates overlap and have an index
            of `top_k` pooled keys.
        num_hashed: leading layers whose experts are chosen by token id.
        near: rotary positions of layers with only a sliding window.
        far: rotary positions of layers with pooled keys.
    """
    norm, network = RMSNorm(eps=eps), GatedMLP(d_ff=expert_d_ff, activation="silu", limit=limit)
    shortest = min((rate for rate in rates if rate), default=0)
    index = PooledIndex(top_k=top_k, num_heads=index_heads, head_dim=index_dim)

    def block(layer: int, rate: int) -> Block:
        sparse = rate == shortest
        pooling = Pooling(rate=rate, overlap=sparse, index=index if sparse else None) if rate else None
        weights: dict[str, Any] = {"renormalize": True, "scale": router_scale}
        hashed = HashRouter(affinity="sqrt_softplus", **weights)
        return Block(
            wiring=PreNorm(norm=norm),
            mixer=CompressedAttention(
                num_heads=num_heads, head_dim=head_dim, rotary_dim=rotary_dim, query_rank=query_rank, window=window,
                groups=groups, group_rank=group_rank, position=far if rate else near, norm=norm,
                query_norm=norm.replace(weight=False), pooling=pooling,
            ),
            feedforward=MixtureOfExperts(
                num_experts=num_experts, experts_per_token=experts_per_token, expert=network, shared=network,
                router=hashed if layer < num_hashed else SqrtSoftplusRouter(expert_bias=True, **weights),
            ),
        )  # fmt: skip

    return decoder(
        tuple(block(layer, rate) for layer, rate in enumerate(rates)),
        norm=norm,
        residual=Streams(num_streams=num_streams, sinkhorn_steps=20, eps=1e-6, norm_eps=1e-6),
        **({"vocab_size": 129_280, "context_length": 1_048_576} | model),
    )


FAMILY = Family("deepseek_v4", {
    **presets("deepseek-ai/DeepSeek-V4-* config.json", deepseek_v4, {
        "deepseek-v4-flash": dict(rates=(0, 0, *20 * (4, 128), 4), d_model=4096, num_heads=64, groups=8,
            query_rank=1024, num_experts=256, expert_d_ff=2048, top_k=512, router_scale=1.5),
        "deepseek-v4-pro": dict(rates=(128, 128, *29 * (4, 128), 4), d_model=7168, num_heads=128, groups=16,
            query_rank=1536, num_experts=384, expert_d_ff=3072, top_k=1024, router_scale=2.5),
    }),
    **tiny(deepseek_v4, {
        "deepseek-v4-tiny": dict(rates=(4, 16), num_heads=4, groups=2, query_rank=32, num_experts=4, expert_d_ff=64,
            top_k=8, router_scale=1.5, experts_per_token=2, num_hashed=1, head_dim=32, rotary_dim=16, window=32,
            group_rank=16, index_heads=4, index_dim=32, far=Rotary(theta=160_000.0, interleaved=True)),
    }),
})  # fmt: skip
