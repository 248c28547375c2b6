"""GLM-4.5 (GLM Team 2025): sigmoid routers balanced by a bias, and rotary positions on half of each head."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.llama import llama
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import ProjectionBiases
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SigmoidRouter


def glm4_moe(
    *, d_ff: int, expert_d_ff: int, num_experts: int, num_dense_layers: int, router_scale: float, qk_norm: bool,
    **design: Any,
) -> Decoder:
    """Build a GLM-4.5 decoder: dense layers, then layers with routed experts and a shared expert; see `llama`."""
    settings: dict[str, Any] = {
        "num_kv_heads": 8, "head_dim": 128, "vocab_size": 151_552, "context_length": 131_072,
        # `partial_rotary_factor: 0.5`
        "position": Rotary(theta=1_000_000.0, dim=64),
        "attention_bias": ProjectionBiases(q=True, k=True, v=True),
        # `use_qk_norm`: only the larger model
        "attention": {"qk_norm": RMSNorm(eps=1e-5) if qk_norm else NoNorm()},
    }
    sparse = with_experts(
        llama(d_ff=expert_d_ff, **settings, **design),
        num_experts=num_experts,
        experts_per_token=8,
        shared=GatedMLP(d_ff=expert_d_ff, activation="silu"),
        router=SigmoidRouter(renormalize=True, scale=router_scale, expert_bias=True),
    )
    # `first_k_dense_replace`: the first layers have no experts
    dense = sparse.layers[0].replace(feedforward=GatedMLP(d_ff=d_ff, activation="silu"))
    return sparse.replace(layers=(*[dense] * num_dense_layers, *sparse.layers[num_dense_layers:]))


# Without the layer for multi-token prediction.
FAMILY = Family("glm4_moe", presets("GLM Team 2025, table 1; zai-org/GLM-4.5* config.json", glm4_moe, {
    "glm-4.5": dict(num_layers=92, d_model=5120, num_heads=96, d_ff=12_288, expert_d_ff=1536, num_experts=160,
        num_dense_layers=3, router_scale=2.5, qk_norm=True),
    "glm-4.5-air": dict(num_layers=46, d_model=4096, num_heads=96, d_ff=10_944, expert_d_ff=1408, num_experts=128,
        num_dense_layers=1, router_scale=1.0, qk_norm=False),
}))
