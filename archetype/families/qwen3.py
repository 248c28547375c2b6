"""Qwen3 (Qwen Team 2025): Llama with QK norms. Format: transformers' `qwen3`."""

from typing import Any

from archetype.families.decoder_classes import OF_PREFIXED_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Key
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys, llama
from archetype.families.qwen2 import WINDOWS
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary


def qwen3(*, eps: float = 1e-6, **design: Any) -> Decoder:
    """Build a Qwen3 decoder. `design` takes the arguments of `llama`."""
    usual: dict[str, Any] = {"head_dim": 128, "vocab_size": 151_936, "context_length": 40_960}
    usual["position"] = Rotary(theta=1_000_000.0)
    return llama(eps=eps, attention={"qk_norm": RMSNorm(eps=eps)}, **usual | design)


KEYS = ConfigTable(qwen3, (
    *design_keys(head_dim=128, num_key_value_heads=32, vocab_size=151_936, intermediate_size=22_016,
        max_position_embeddings=32_768),
    WINDOWS,
    Key("hidden_act", "activation", "silu"),
    Key("attention_bias", "attention_bias", False),
), parts=PARTS)

QK_NORMS = weight_rules("""
    model.layers.{i}.self_attn.{q,k}_norm   blocks.{i}.mixer.{q,k}_norm
""")

FAMILY = Family("qwen3", {
    **presets("Qwen Team 2025, table 1; Qwen/Qwen3-* config.json", qwen3, {
        "qwen3-0.6b": dict(num_layers=28, d_model=1024, num_heads=16, num_kv_heads=8, d_ff=3072, tied=True),
        "qwen3-1.7b": dict(num_layers=28, d_model=2048, num_heads=16, num_kv_heads=8, d_ff=6144, tied=True),
        "qwen3-4b": dict(num_layers=36, d_model=2560, num_heads=32, num_kv_heads=8, d_ff=9728, tied=True),
        "qwen3-8b": dict(num_layers=36, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=12_288),
        "qwen3-14b": dict(num_layers=40, d_model=5120, num_heads=40, num_kv_heads=8, d_ff=17_408),
        "qwen3-32b": dict(num_layers=64, d_model=5120, num_heads=64, num_kv_heads=8, d_ff=25_600),
    }),
    **tiny(qwen3, {
        "qwen3-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=24, d_ff=172, tied=True),
    }),
}, Format("qwen3", "Qwen3ForCausalLM", KEYS, (*RULES, *QK_NORMS), "model.", INV_FREQ,
    class_heads=OF_PREFIXED_SPANS))
