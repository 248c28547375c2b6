"""BLOOM (BigScience 2022): ALiBi and a norm after the embedding. Format: transformers' `bloom`."""

from typing import Any

from archetype.families.decoder_classes import OF_GPT
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, expect_kind, ignored
from archetype.families.rules import Rule, weight_rules
from archetype.families.standard_block import standard_decoder
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Alibi


def bloom(*, eps: float = 1e-5, **design: Any) -> Decoder:
    """Build a BLOOM decoder. `design` takes the arguments of `standard_decoder`."""
    norm, sizes = LayerNorm(eps=eps), {"vocab_size": 250_880, "context_length": 2048}
    return standard_decoder(
        norm=norm,
        activation="gelu_tanh",
        position=Alibi(),
        # `word_embeddings_layernorm`: a norm after the embedding makes training stable (BigScience 2022, section 3.2)
        model={"embedding": Embedding(norm=norm)},
        **sizes | design,
    )


KEYS = ConfigTable(bloom, (
    # settings of Megatron-DeepSpeed that do not affect outputs
    ignored("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "n_inner", "offset_alibi",
        "pretraining_tp", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"),
    Expected("apply_residual_connection_post_layernorm", False, "residuals from after the norm"),
    Key(("n_layer", "num_hidden_layers"), "num_layers", 2),
    Key(("n_embed", "hidden_size"), "d_model", 64, written="hidden_size"),
    Key(("n_head", "num_attention_heads"), "num_heads", 8),
    Key("vocab_size", "vocab_size", 250_880),
    Key("seq_length", "context_length", 2048),
    Key("layer_norm_epsilon", "eps", 1e-5),
    Key("hidden_dropout", "dropout", 0.0),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("tie_word_embeddings", "tied", True),
    Key("initializer_range", "std", 0.02),
), parts={"block.mixer": Attention, "final_norm": LayerNorm})


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    """Return the weight rules. Queries, keys and values share a matrix, interleaved by head."""
    mixer = expect_kind(Attention, expect_kind(Decoder, model, "kind").layers[0].mixer, "layers[0].mixer")
    return weight_rules("""
        transformer.word_embeddings                   embedding.token
        transformer.word_embeddings_layernorm         embedding.norm
        transformer.h.{i}.input_layernorm             blocks.{i}.mixer_norm
        transformer.h.{i}.self_attention.dense        blocks.{i}.mixer.o
        transformer.h.{i}.post_attention_layernorm    blocks.{i}.feedforward_norm
        transformer.h.{i}.mlp.dense_{h_to_4h,4h_to_h}   blocks.{i}.feedforward.{up,down}
        transformer.ln_f                              final_norm
        lm_head                                       lm_head
    """) + weight_rules(
        "transformer.h.{i}.self_attention.query_key_value blocks.{i}.mixer.{q,k,v}", heads=mixer.num_heads
    )


FAMILY = Family("bloom", {
    **presets("BigScience 2022, table 3; bigscience/bloom* config.json", bloom, {
        "bloom-560m": dict(num_layers=24, d_model=1024, num_heads=16),
        "bloom-1b1": dict(num_layers=24, d_model=1536, num_heads=16),
        "bloom-1b7": dict(num_layers=24, d_model=2048, num_heads=16),
        "bloom-3b": dict(num_layers=30, d_model=2560, num_heads=32),
        "bloom-7b1": dict(num_layers=30, d_model=4096, num_heads=32),
        "bloom-176b": dict(num_layers=70, d_model=14_336, num_heads=112),
    }),
    **tiny(bloom, {"bloom-tiny": dict(num_layers=2, num_heads=4)}),
}, Format("bloom", "BloomForCausalLM", KEYS, rules, "transformer.", class_heads=OF_GPT))
