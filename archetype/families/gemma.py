"""Gemma (Gemma Team 2024). Format: transformers' `gemma`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TOKENS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Row, Values
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys, llama
from archetype.models.decoder.spec import Decoder
from archetype.parts.activation.spec import GELU, GELUTanh
from archetype.parts.embedding.spec import Embedding
from archetype.roles.activation import Activation


def gemma(*, d_model: int, activation: Activation | str = "gelu_tanh", eps: float = 1e-6, **design: Any) -> Decoder:
    """Build a Gemma decoder: Llama with RMSNorm weights around 1, GeGLU, and scaled and tied embeddings."""
    defaults = {"head_dim": 256, "vocab_size": 256_000, "context_length": 8192, "tied": True}
    return llama(
        d_model=d_model,
        activation=activation,
        eps=eps,
        # norms multiply by 1 + weight: published weights are around 0
        unit_offset=True,
        # transformers rounds the factor to the dtype of the embedding, sqrt(3072) to 55.5 in bfloat16
        embedding=Embedding(scale=d_model**0.5, round_scale=True),
        **(defaults | design),
    )


def _read_activation(config: Config, values: Values) -> Values:
    activation = config.activation("hidden_act", "gelu_pytorch_tanh")
    # early files say "gelu" but mean the approximation
    activation = GELUTanh() if activation == GELU() else activation
    if config.get("hidden_activation") is not None and config.activation("hidden_activation", "") != activation:
        raise config.error("hidden_activation", "contradicts hidden_act", "remove the wrong key")
    return {"activation": activation}


def _read_direction(config: Config, values: Values) -> Values:
    if config.get("use_bidirectional_attention") not in (None, False):
        raise config.error("use_bidirectional_attention", "attends to later tokens", "only decoders are supported")
    return {}


def gemma_keys(rotary: bool = True, **defaults: Any) -> tuple[Row, ...]:
    """Return the keys for Gemma-like formats. `defaults` override the defaults of the transformers class."""
    common = {"head_dim": 256, "vocab_size": 256_000, "max_position_embeddings": 8192, "tie_word_embeddings": True}
    return (
        *design_keys(rotary=rotary, **(common | defaults)),
        Converted(_read_direction, lambda model: {}),
        Key("attention_bias", "attention_bias", False),
    )


KEYS = ConfigTable(gemma, (
    *gemma_keys(hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16,
        intermediate_size=24_576),
    Converted(_read_activation, Key("hidden_act", "activation").write),
), parts=PARTS)


FAMILY = Family("gemma", {
    **presets("Gemma Team 2024, table 1; google/gemma-* config.json", gemma, {
        "gemma-2b": dict(num_layers=18, d_model=2048, num_heads=8, num_kv_heads=1, d_ff=16_384),
        "gemma-7b": dict(num_layers=28, d_model=3072, num_heads=16, num_kv_heads=16, d_ff=24_576),
    }),
    **tiny(gemma, {"gemma-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32, d_ff=256)}),
}, Format("gemma", "GemmaForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_TOKENS))
