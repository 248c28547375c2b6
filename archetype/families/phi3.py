"""Phi-3 and Phi-4 (Abdin 2024, Abdin 2024b): Mistral with fused projections. Format: transformers' `phi3`."""

from functools import partial
from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TOKENS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, ignored, value_at
from archetype.families.llama import INV_FREQ, PARTS, PRE_NORMS, design_keys, rotary_keys
from archetype.families.mistral import mistral, window_size
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.position.spec import Rotary


def phi3(**design: Any) -> Decoder:
    """Build a Phi-3 decoder. `design` takes the arguments of `llama`."""
    return mistral(**{"vocab_size": 32_064, "context_length": 4096, "window": 2047} | design)


def _trained(model: Decoder) -> int:
    # original context length, in tokens
    position = value_at(model, "block.mixer.position")
    return int(getattr(position.scaling, "original_context_length", model.context_length))


KEYS = ConfigTable(phi3, (
    ignored("resid_pdrop", "embd_pdrop"),  # only in training
    Expected("attention_bias", False, "biases"),
    *design_keys(rotary=False, vocab_size=32_064, hidden_size=3072, intermediate_size=8192,
        max_position_embeddings=4096, rms_norm_eps=1e-5),
    # transformers switches to the long factors beyond 4,096 tokens, and then computes the whole sequence again
    rotary_keys(10_000.0, whole=False, trained=4096, rereads=True),
    # read by `rotary_keys`; written for models without LongRoPE too
    ignored("original_max_position_embeddings", path=_trained),
    Key("sliding_window", "window", check=Config.optional_size, path=window_size),
    Key("hidden_act", "activation", "silu"),
), parts=PARTS)

RULES = (*weight_rules("""
    model.embed_tokens                       embedding.token
    model.layers.{i}.self_attn.qkv_proj      blocks.{i}.mixer.{q,k,v}
    model.layers.{i}.self_attn.o_proj        blocks.{i}.mixer.o
    model.layers.{i}.mlp.gate_up_proj        blocks.{i}.feedforward.{gate,up}
    model.layers.{i}.mlp.down_proj           blocks.{i}.feedforward.down
    model.norm                               final_norm
    lm_head                                  lm_head
"""), *PRE_NORMS)

FAMILY = Family("phi3", {
    **presets("Abdin 2024; microsoft/Phi-3-*-4k-instruct config.json", phi3, {
        "phi3-mini-4k": dict(num_layers=32, d_model=3072, num_heads=32, d_ff=8192),
        "phi3-medium-4k": dict(num_layers=40, d_model=5120, num_heads=40, num_kv_heads=10, d_ff=17_920),
    }),
    **presets("Abdin 2024b; microsoft/phi-4 config.json", partial(phi3, window=None, vocab_size=100_352), {
        "phi4": dict(num_layers=40, d_model=5120, num_heads=40, num_kv_heads=10, d_ff=17_920, context_length=16_384,
            position=Rotary(theta=250_000.0)),
    }),
    **tiny(phi3, {"phi3-tiny": dict(num_layers=2, num_heads=4, d_ff=172, window=32)}),
}, Format("phi3", "Phi3ForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_TOKENS))
