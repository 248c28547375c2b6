"""Marian (Junczys-Dowmunt 2018), the Transformer of OPUS-MT. Format: transformers' `marian`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets
from archetype.families.format import Format
from archetype.families.keys import (
    ConfigTable,
    Converted,
    Expected,
    Key,
    Row,
    Values,
    check_width,
    expect_kind,
    ignored,
)
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import standard_block
from archetype.models.block.spec import Block, PostNorm
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import Stack
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import PairEmbedding
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Sinusoidal
from archetype.roles.activation import Activation
from archetype.spec.base import Spec
from archetype.spec.repeats import repeat


def marian(
    *,
    num_layers: int,
    num_decoder_layers: int | None = None,
    d_model: int,
    num_heads: int,
    num_decoder_heads: int | None = None,
    d_ff: int,
    decoder_d_ff: int | None = None,
    shared: bool = True,
    scaled: bool = True,
    activation: Activation | str = "silu",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
    **sizes: Any,
) -> EncoderDecoder:
    """Build an encoder-decoder with biases everywhere. The decoder's sizes default to the encoder's sizes."""

    def block(heads: int, width: int) -> Block:
        return standard_block(
            wiring=PostNorm(norm=LayerNorm()),
            num_heads=heads,
            d_ff=width,
            activation=activation,
            attention_dropout=attention_dropout,
            dropout=dropout,
        )

    source = block(num_heads, d_ff)
    target = block(num_decoder_heads or num_heads, decoder_d_ff or d_ff)
    target = target.replace(cross_attention=target.mixer)
    return EncoderDecoder(
        d_model=d_model,
        embedding=PairEmbedding(
            shared=shared,
            scale=d_model**0.5 if scaled else 1.0,
            # all sines before all cosines, as in Marian's program
            position=Sinusoidal(interleaved=False),
            dropout=dropout,
        ),
        encoder=Stack(layers=repeat(num_layers, source)),
        decoder=Stack(layers=repeat(num_decoder_layers or num_layers, target)),
        head=LanguageModelHead(tied=True, bias=True),
        initialization=NormalInitialization(std=std),
        **({"vocab_size": 58_101, "context_length": 512} | sizes),
    )


def _read_vocabularies(config: Config, values: Values) -> Values:
    vocab_size = check_width(config, "vocab_size", 58_101)
    shared = config.flag("share_encoder_decoder_embeddings", True)
    target_size = check_width(config, "decoder_vocab_size", vocab_size)
    if shared:
        return {"vocab_size": vocab_size, "shared": True}
    # with separate vocabularies, `vocab_size` is the source's
    source_size = None if target_size == vocab_size else vocab_size
    return {"vocab_size": target_size, "source_vocab_size": source_size, "shared": False}


def _write_vocabularies(model: EncoderDecoder) -> dict[str, Any]:
    return {
        "vocab_size": model.source_vocab_size or model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "share_encoder_decoder_embeddings": model.embedding.is_shared,
    }


# Keys of all formats of encoder-decoder Transformers.
PAIR_KEYS: tuple[Row, ...] = (
    ignored("num_hidden_layers", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "extra_pos_embeddings",
        "classif_dropout", "classifier_dropout"),
    Expected("tie_word_embeddings", True, "another design"),
    Key("encoder_layers", "num_layers", 12, path=lambda model: len(model.encoder.layers)),
    Key("encoder_attention_heads", "num_heads", 16),
    Key("encoder_ffn_dim", "d_ff", 4096),
    Key("decoder_layers", "num_decoder_layers", 12),
    Key("d_model", "d_model", 1024),
    Key("decoder_attention_heads", "num_decoder_heads", 16, path="decoder.block.mixer.num_heads"),
    Key("decoder_ffn_dim", "decoder_d_ff", 4096),
    Key("scale_embedding", "scaled", False, check=Config.flag, path="embedding.scale",
        encode=lambda scale: scale != 1.0),
    Key("max_position_embeddings", "context_length", 1024),
    Key("activation_function", "activation", "gelu", path="decoder.block.feedforward.activation"),
    Key("dropout", "dropout", 0.1, path="embedding.dropout"),
    Key("attention_dropout", "attention_dropout", 0.0, path="decoder.block.mixer.dropout"),
    Key("init_std", "std", 0.02),
)
PAIR_PARTS: dict[str, type[Spec]] = {
    "block.mixer": Attention,
    "block.feedforward": MLP,
    "decoder.block.mixer": Attention,
    "decoder.block.feedforward": MLP,
}
KEYS = ConfigTable(marian, (
    # keys of Marian's program: post-norm, sinusoidal positions, and a bias of the logits
    *(Expected(name, False, "another design") for name in (
        "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "tie_encoder_decoder"
    )),
    Expected("static_position_embeddings", True, "another design"),
    Converted(_read_vocabularies, _write_vocabularies),
    *PAIR_KEYS,
), EncoderDecoder, PAIR_PARTS)

# Layers, whose names are common to all these formats.
PAIR_LAYERS = """
    model.{encoder,decoder}.layers.{i}.self_attn.{q,k,v,out}_proj   {encoder,decoder}.blocks.{i}.mixer.{q,k,v,o}
    model.{encoder,decoder}.layers.{i}.self_attn_layer_norm   {encoder,decoder}.blocks.{i}.mixer_norm
    model.decoder.layers.{i}.encoder_attn.{q,k,v,out}_proj    decoder.blocks.{i}.cross.{q,k,v,o}
    model.decoder.layers.{i}.encoder_attn_layer_norm          decoder.blocks.{i}.cross_norm
    model.{encoder,decoder}.layers.{i}.{fc1,fc2}   {encoder,decoder}.blocks.{i}.feedforward.{up,down}
    model.{encoder,decoder}.layers.{i}.final_layer_norm       {encoder,decoder}.blocks.{i}.feedforward_norm
"""


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    pair = expect_kind(EncoderDecoder, model, "kind")
    return (
        rule("model.shared.weight" if pair.embedding.is_shared else TARGET, "embedding.token.weight"),
        rule(SOURCE, "source_embedding.token.weight"),
        *weight_rules(PAIR_LAYERS),
        # a buffer of shape (1, V) in transformers
        rule("final_logits_bias", "lm_head.bias", shape=(1, pair.vocab_size)),
    )


SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"

PAIR_COPIES = dict.fromkeys((SOURCE, TARGET, "lm_head.weight"), "embedding.token.weight")
COMPUTED = r"(model\.)?(encoder|decoder)\.embed_positions\.weight"
FAMILY = Family("marian", presets("Helsinki-NLP/opus-mt-* config.json (those with 58,101 tokens)", marian,
    {"opus-mt": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048)}), Format("marian", "MarianMTModel", KEYS,
    rules, "", (COMPUTED,), PAIR_COPIES))
