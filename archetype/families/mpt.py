"""MPT (MosaicML 2023): ALiBi, and no bias anywhere; as transformers' `mpt` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import rule
from archetype.families.standard_block import standard_block
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

# How to compute and to begin, not what.
IGNORED = ("init_device", "init_config", "embedding_fraction", "norm_type", "tokenizer_name", "verbose", "emb_pdrop",
           "learned_pos_emb")  # fmt: skip


def mpt(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    vocab_size: int = 50_432,
    context_length: int = 2048,
    eps: float = 1e-5,
    scale: float | None = None,
    attention_dropout: float = 0.0,
    dropout: float = 0.0,
    tied: bool = True,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of MPT's design."""
    norm = spec.LayerNorm(eps=eps, bias=False)
    block = standard_block(
        wiring=spec.PreNorm(norm=norm),
        num_heads=num_heads,
        d_ff=4 * d_model,
        activation="gelu",
        bias=False,
        scale=scale,
        position=spec.Alibi(),
        attention_dropout=attention_dropout,
        dropout=dropout,
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    for key in IGNORED:
        config.get(key)
    config.expect("expansion_ratio", 4, "another width of the feed-forward parts")
    config.expect("logit_scale", None, "scaled logits")
    config.expect("no_bias", True, "biases")
    attention = config.section("attn_config") or Config({}, f"{config.place}: attn_config")
    attention.get("attn_impl")
    for key, value, meaning in (
        ("attn_type", "multihead_attention", "shared keys and values"),
        ("clip_qkv", None, "clipped queries, keys and values"),
        ("prefix_lm", False, "a prefix that sees all of itself"),
        ("qk_ln", False, "norms of queries and keys"),
        ("attn_uses_sequence_id", False, "several texts in a row"),
        ("alibi", True, "other positions than ALiBi"),
        ("alibi_bias_max", 8, "other slopes"),
    ):
        attention.expect(key, value, meaning)
    dropout = attention.rate("attn_pdrop", 0.0)
    scale = attention.optional_positive("softmax_scale")
    attention.finish()
    return mpt(
        num_layers=config.size("n_layers", 24, MAX_LAYERS),
        d_model=config.size("d_model", 2048),
        num_heads=config.size("n_heads", 16),
        vocab_size=config.size("vocab_size", 50_368, MAX_WIDE),
        context_length=config.size("max_seq_len", 2048, MAX_LENGTH),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        scale=scale,
        attention_dropout=dropout,
        dropout=config.rate("resid_pdrop", 0.0),
        tied=config.flag("tie_word_embeddings", True),
        std=config.positive("initializer_range", 0.02),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    mixer = expect_kind(spec.Attention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(spec.LayerNorm, decoder.final_norm, "final_norm")
    return {
        "vocab_size": decoder.vocab_size,
        "max_seq_len": decoder.context_length,
        "d_model": decoder.d_model,
        "n_layers": decoder.num_layers,
        "n_heads": mixer.num_heads,
        "expansion_ratio": 4,
        "layer_norm_epsilon": norm.eps,
        "attn_config": {"softmax_scale": mixer.scale},
        "no_bias": True,
        "resid_pdrop": decoder.layers[0].dropout,
        "tie_word_embeddings": decoder.head.tied,
        "initializer_range": getattr(decoder.initialization, "std", 0.02),
    }


BLOCK, LAYER = "transformer.blocks.{i}", "blocks.{i}"
RULES = (
    rule("transformer.wte.weight", "embedding.token.weight"),
    rule(f"{BLOCK}.norm_1.weight", f"{LAYER}.mixer_norm.weight"),
    rule(f"{BLOCK}.attn.Wqkv.weight", *(f"{LAYER}.mixer.{projection}.weight" for projection in "qkv")),
    rule(f"{BLOCK}.attn.out_proj.weight", f"{LAYER}.mixer.o.weight"),
    rule(f"{BLOCK}.norm_2.weight", f"{LAYER}.feedforward_norm.weight"),
    rule(f"{BLOCK}.ffn.up_proj.weight", f"{LAYER}.feedforward.up.weight"),
    rule(f"{BLOCK}.ffn.down_proj.weight", f"{LAYER}.feedforward.down.weight"),
    rule("transformer.norm_f.weight", "final_norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
)

FAMILY = Family(
    "mpt",
    {
        **presets(
            "MosaicML 2023; mosaicml/mpt-7b config.json",
            mpt,
            {"mpt-7b": dict(num_layers=32, d_model=4096, num_heads=32)},
        ),
        **tiny(mpt, {"mpt-tiny": dict(num_layers=2, num_heads=4)}),
    },
    Format("mpt", "MptForCausalLM", read, write, RULES, "transformer."),
)
