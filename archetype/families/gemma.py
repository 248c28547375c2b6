"""Gemma (Gemma Team 2024), as transformers' `gemma` writes it."""

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values
from archetype.families.llama import INV_FREQ, PARTS, RULES, design_keys
from archetype.families.standard_block import ALL_BIASES


def gemma(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    head_dim: int = 256,
    vocab_size: int = 256_000,
    context_length: int = 8192,
    position: spec.Rotary = spec.Rotary(),
    activation: spec.Activation = "gelu_tanh",
    eps: float = 1e-6,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Gemma's design: norms around one, GeGLU, embeddings scaled by sqrt(d_model) and tied."""
    norm = spec.RMSNorm(eps=eps, unit_offset=True)
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.Attention(
            num_heads=num_heads,
            num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
            head_dim=None if head_dim * num_heads == d_model else head_dim,
            bias=ALL_BIASES if attention_bias else spec.ProjectionBiases(),
            position=position,
            dropout=attention_dropout,
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation=activation),
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.Embedding(scale=d_model**0.5),
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def _read_activation(config: Config, values: Values) -> Values:
    activation = config.activation("hidden_act", "gelu_pytorch_tanh")
    activation = "gelu_tanh" if activation == "gelu" else activation  # what the first files meant
    if config.get("hidden_activation") is not None and config.activation("hidden_activation", "") != activation:
        raise config.error("hidden_activation", "contradicts hidden_act", "remove the wrong one")
    return {"activation": activation}


KEYS = ConfigTable(gemma, (
    *design_keys(
        hidden_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        intermediate_size=24_576,
        vocab_size=256_000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    Expected("use_bidirectional_attention", None, "attention to later tokens"),
    Converted(_read_activation, Key("hidden_act", "activation").write),
    Key("attention_bias", "attention_bias", False),
), parts=PARTS)  # fmt: skip


FAMILY = Family("gemma", {
    **presets("Gemma Team 2024, table 1; google/gemma-* config.json", gemma, {
        "gemma-2b": dict(num_layers=18, d_model=2048, num_heads=8, num_kv_heads=1, d_ff=16_384),
        "gemma-7b": dict(num_layers=28, d_model=3072, num_heads=16, num_kv_heads=16, d_ff=24_576),
    }),
    **tiny(gemma, {"gemma-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32, d_ff=256)}),
}, Format("gemma", "GemmaForCausalLM", KEYS, RULES, "model.", INV_FREQ))  # fmt: skip
