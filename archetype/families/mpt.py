"""MPT (MosaicML 2023): ALiBi and no biases. Format: transformers' `mpt`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_GPT
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Section, ignored
from archetype.families.rules import weight_rules
from archetype.families.standard_block import standard_decoder
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Alibi


def mpt(*, eps: float = 1e-5, **design: Any) -> Decoder:
    """Build an MPT decoder. `design` takes the arguments of `standard_decoder`."""
    norm, sizes = LayerNorm(eps=eps, bias=False), {"vocab_size": 50_432, "context_length": 2048}
    return standard_decoder(norm=norm, bias=False, activation="gelu", position=Alibi(), **sizes | design)


ATTENTION_KEYS = (
    ignored("attn_impl"),
    Expected("attn_type", "multihead_attention", "shared keys and values"),
    Expected("clip_qkv", None, "clipped queries, keys and values"),
    Expected("prefix_lm", False, "a bidirectional prefix"),
    Expected("qk_ln", False, "norms of queries and keys"),
    Expected("attn_uses_sequence_id", False, "several documents in a sequence"),
    Expected("alibi", True, "other positions than ALiBi"),
    Expected("alibi_bias_max", 8, "other slopes"),
    # read but never written: transformers declares it as an integer and refuses other values
    Converted(lambda config, values: {"attention_dropout": config.rate("attn_pdrop", 0.0)}, lambda model: {}),
    Key("softmax_scale", "scale", check=Config.optional_positive),
)
KEYS = ConfigTable(mpt, (
    # settings of computation and initialization
    ignored("init_device", "init_config", "embedding_fraction", "norm_type", "tokenizer_name", "verbose", "emb_pdrop",
        "learned_pos_emb"),
    Expected("expansion_ratio", 4, "another width of the feed-forward parts", path=lambda model: 4),
    Expected("logit_scale", None, "scaled logits"),
    Expected("no_bias", True, "biases", path=lambda model: True),
    Section("attn_config", ATTENTION_KEYS),
    Key("n_layers", "num_layers", 24),
    Key("d_model", "d_model", 2048),
    Key("n_heads", "num_heads", 16),
    Key("vocab_size", "vocab_size", 50_368),
    Key("max_seq_len", "context_length", 2048),
    Key("layer_norm_epsilon", "eps", 1e-5),
    Key("resid_pdrop", "dropout", 0.0),
    Key("tie_word_embeddings", "tied", True),
    Key("initializer_range", "std", 0.02),
), parts={"block.mixer": Attention, "final_norm": LayerNorm})


RULES = weight_rules("""
    transformer.wte                           embedding.token
    transformer.blocks.{i}.{norm_1,norm_2}    blocks.{i}.{mixer_norm,feedforward_norm}
    transformer.blocks.{i}.attn.Wqkv          blocks.{i}.mixer.{q,k,v}
    transformer.blocks.{i}.attn.out_proj      blocks.{i}.mixer.o
    transformer.blocks.{i}.ffn.{up,down}_proj   blocks.{i}.feedforward.{up,down}
    transformer.norm_f                        final_norm
    lm_head                                   lm_head
""")

FAMILY = Family("mpt", {
    **presets("MosaicML 2023; mosaicml/mpt-7b config.json", mpt,
        {"mpt-7b": dict(num_layers=32, d_model=4096, num_heads=32)}),
    **presets("MosaicML 2023b; mosaicml/mpt-30b config.json", mpt,
        {"mpt-30b": dict(num_layers=48, d_model=7168, num_heads=64, context_length=8192)}),
    **tiny(mpt, {"mpt-tiny": dict(num_layers=2, num_heads=4)}),
}, Format("mpt", "MptForCausalLM", KEYS, RULES, "transformer.", class_heads=OF_GPT))
