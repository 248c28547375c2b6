"""MiniMax-M2 (MiniMax 2025): full attention, and 256 narrow experts with sigmoid routing."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.llama import llama
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SigmoidRouter


def minimax_m2(*, expert_d_ff: int, **design: Any) -> Decoder:
    """Build a MiniMax-M2 decoder: QK norms over all heads, rotary positions on half of each head."""
    norm = RMSNorm(eps=1e-6)
    dense = llama(
        # `rotary_dim: 64` of 128; `qk_norm_type: per_layer` normalizes all heads together
        head_dim=128, d_ff=expert_d_ff, eps=1e-6, attention={"qk_norm": norm, "qk_norm_over": "all"},
        position=Rotary(theta=5_000_000.0, dim=64), vocab_size=200_064, context_length=196_608, **design,
    )
    router = SigmoidRouter(renormalize=True, expert_bias=True)
    return with_experts(dense, num_experts=256, experts_per_token=8, router=router, balance_loss=0.001)


# Without the layers for multi-token prediction.
FAMILY = Family("minimax_m2", presets("MiniMax 2025; MiniMaxAI/MiniMax-M2 config.json", minimax_m2,
    {"minimax-m2": dict(num_layers=62, d_model=3072, num_heads=48, num_kv_heads=8, expert_d_ff=1536)}))
