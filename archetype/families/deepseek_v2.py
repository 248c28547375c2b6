"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention, and many small experts."""

from math import log, sqrt

from archetype import spec
from archetype.families.family import Family, sizes, tiny

# 4,096 tokens stretched to 40 times as many (section 3.1.4)
LONG = spec.Rotary(
    interleaved=True,
    scaling=spec.YarnScaling(factor=40.0, original_context_length=4096, mscale=0.707, mscale_all_dim=0.707),
)


def deepseek_v2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_experts: int,
    experts_per_token: int,
    expert_d_ff: int,
    num_shared_experts: int = 2,
    num_dense_layers: int = 1,
    groups: spec.ExpertGroups | None = None,
    router_scale: float = 1.0,
    q_lora_rank: int | None = None,
    kv_lora_rank: int = 512,
    qk_nope_head_dim: int = 128,
    qk_rope_head_dim: int = 64,
    v_head_dim: int = 128,
    position: spec.Rotary = LONG,
    vocab_size: int = 102_400,
    context_length: int = 163_840,
    eps: float = 1e-6,
    balance_loss: float = 0.001,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of DeepSeek-V2's design: `num_dense_layers` with a plain `d_ff`, then layers with experts.

    Queries go through a vector of `q_lora_rank` features, or directly where it is None. The shared experts, which every
    token has, are one that is as wide as all of them.
    """
    norm = spec.RMSNorm(eps=eps)
    dense = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.LatentAttention(
            num_heads=num_heads,
            query=spec.DirectQuery() if q_lora_rank is None else spec.LowRankQuery(rank=q_lora_rank),
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            position=position,
            scale=_scale(qk_nope_head_dim + qk_rope_head_dim, position.scaling),
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation="silu"),
    )
    experts = spec.MixtureOfExperts(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert=spec.GatedMLP(d_ff=expert_d_ff, activation="silu"),
        shared=spec.GatedMLP(d_ff=num_shared_experts * expert_d_ff, activation="silu"),
        router=spec.SoftmaxRouter(scale=router_scale),
        groups=groups,
        balance_loss=balance_loss,
    )
    sparse = dense.changed(feedforward=experts)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=(*spec.repeat(num_dense_layers, dense), *spec.repeat(num_layers - num_dense_layers, sparse)),
        final_norm=norm,
        initialization=spec.NormalInitialization(std=std),
    )


def _scale(head_dim: int, scaling: spec.RotaryScaling) -> float | None:
    """What scores are multiplied by: yarn's factor is applied to query and key, also to what is not turned."""
    if not isinstance(scaling, spec.YarnScaling) or scaling.mscale_all_dim is None:
        return None
    factor = 0.1 * scaling.mscale_all_dim * log(scaling.factor) + 1.0
    return factor * factor / sqrt(head_dim)


FAMILY = Family(
    "deepseek_v2",
    {
        **sizes(
            "DeepSeek-AI 2024, section 3.1.2; deepseek-ai/DeepSeek-V2 config.json",
            deepseek_v2,
            {
                "deepseek-v2": dict(
                    num_layers=60,
                    d_model=5120,
                    num_heads=128,
                    d_ff=12_288,
                    num_experts=160,
                    experts_per_token=6,
                    expert_d_ff=1536,
                    groups=spec.ExpertGroups(num_groups=8, groups_per_token=3),
                    router_scale=16.0,
                    q_lora_rank=1536,
                )
            },
        ),
        **sizes(
            "DeepSeek-AI 2024, appendix B; deepseek-ai/DeepSeek-V2-Lite config.json",
            deepseek_v2,
            {
                "deepseek-v2-lite": dict(
                    num_layers=27,
                    d_model=2048,
                    num_heads=16,
                    d_ff=10_944,
                    num_experts=64,
                    experts_per_token=6,
                    expert_d_ff=1408,
                )
            },
        ),
        **tiny(
            deepseek_v2,
            {
                "deepseek-v2-tiny": dict(
                    num_layers=2,
                    num_heads=4,
                    d_ff=172,
                    num_experts=8,
                    experts_per_token=2,
                    expert_d_ff=32,
                    groups=spec.ExpertGroups(num_groups=4, groups_per_token=2),
                    router_scale=4.0,
                    q_lora_rank=32,
                    kv_lora_rank=16,
                    qk_nope_head_dim=16,
                    qk_rope_head_dim=8,
                    v_head_dim=16,
                    position=spec.Rotary(interleaved=True),
                )
            },
        ),
    },
)
