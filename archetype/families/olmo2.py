"""OLMo 2 (OLMo Team 2024): norms after each part, QK norms over all heads. Format: transformers' `olmo2`."""

from functools import partial
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Key
from archetype.families.llama import FRAME, GATED_MLP, INV_FREQ, PARTS, design_keys, llama
from archetype.families.qwen3 import QK_NORMS
from archetype.families.rules import weight_rules
from archetype.families.standard_block import changed
from archetype.models.block.spec import OutputNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary


def olmo2(*, eps: float = 1e-6, **design: Any) -> Decoder:
    """Build an OLMo 2 decoder. `design` takes the arguments of `llama`."""
    usual: dict[str, Any] = {"vocab_size": 100_352, "context_length": 4096, "position": Rotary(theta=500_000.0)}
    norm = RMSNorm(eps=eps)
    model = llama(eps=eps, attention={"qk_norm": norm, "qk_norm_over": "all"}, **usual | design)
    # norms follow attention and feed-forward part, inside the residual branch
    return changed(model, wiring=lambda _: OutputNorm(norm=norm))


KEYS = ConfigTable(olmo2, (
    *design_keys(vocab_size=50_304, rms_norm_eps=1e-5),
    Key("hidden_act", "activation", "silu"),
    Key("attention_bias", "attention_bias", False),
), parts=PARTS)

RULES = (*FRAME, *GATED_MLP, *QK_NORMS, *weight_rules("""
    model.layers.{i}.post_attention_layernorm     blocks.{i}.mixer_norm
    model.layers.{i}.post_feedforward_layernorm   blocks.{i}.feedforward_norm
"""))

FAMILY = Family("olmo2", {
    **presets("OLMo Team 2024, table 1; allenai/OLMo-2-* config.json", olmo2, {
        "olmo2-1b": dict(num_layers=16, d_model=2048, num_heads=16, d_ff=8192),
        "olmo2-7b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=11_008),
        "olmo2-13b": dict(num_layers=40, d_model=5120, num_heads=40, d_ff=13_824),
        "olmo2-32b": dict(num_layers=64, d_model=5120, num_heads=40, num_kv_heads=8, d_ff=27_648),
    }),
    **tiny(partial(olmo2, num_layers=2, num_heads=4, d_ff=172), {"olmo2-tiny": {}}),
}, Format("olmo2", "Olmo2ForCausalLM", KEYS, RULES, "model.", INV_FREQ))
