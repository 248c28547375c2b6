"""Marian (Junczys-Dowmunt 2018): the original Transformer of OPUS-MT; as transformers' `marian` writes it."""

from collections.abc import Iterator
from typing import Any

from archetype import spec
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets
from archetype.families.format import Format, expect_kind
from archetype.families.rules import Rule, linear_rules, rule
from archetype.families.standard_block import standard_block
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

# Of Marian's own program, all of them as here: post-norm, positions computed, and a bias of the logits.
IGNORED = (
    "num_hidden_layers", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "extra_pos_embeddings",
    "classif_dropout", "classifier_dropout",
)  # fmt: skip


def marian(
    *,
    name: str = "",
    num_layers: int,
    num_decoder_layers: int | None = None,
    d_model: int,
    num_heads: int,
    num_decoder_heads: int | None = None,
    d_ff: int,
    decoder_d_ff: int | None = None,
    vocab_size: int = 58_101,
    source_vocab_size: int | None = None,
    shared: bool = True,
    scaled: bool = True,
    context_length: int = 512,
    activation: spec.Activation = "silu",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
) -> spec.EncoderDecoder:
    """`num_layers` on each side, if the decoder has no other, and the same for heads and widths; biases everywhere."""

    def block(heads: int, width: int) -> spec.Block:
        return standard_block(
            wiring=spec.PostNorm(norm=spec.LayerNorm()),
            num_heads=heads,
            d_ff=width,
            activation=activation,
            attention_dropout=attention_dropout,
            dropout=dropout,
        )

    source = block(num_heads, d_ff)
    target = block(num_decoder_heads or num_heads, decoder_d_ff or d_ff)
    target = target.replace(cross_attention=target.mixer)
    return spec.EncoderDecoder(
        name=name,
        vocab_size=vocab_size,
        source_vocab_size=source_vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.PairEmbedding(
            shared=shared,
            scale=d_model**0.5 if scaled else 1.0,
            position=spec.Sinusoidal(interleaved=False),
            dropout=dropout,
        ),
        encoder=spec.Stack(layers=spec.repeat(num_layers, source)),
        decoder=spec.Stack(layers=spec.repeat(num_decoder_layers or num_layers, target)),
        head=spec.LanguageModelHead(tied=True, bias=True),
        initialization=spec.NormalInitialization(std=std),
    )


def read(config: Config) -> spec.EncoderDecoder:
    """config.json to specification."""
    for key in IGNORED:
        config.get(key)
    for key, value in (
        ("normalize_before", False),
        ("normalize_embedding", False),
        ("add_final_layer_norm", False),
        ("add_bias_logits", False),
        ("static_position_embeddings", True),
        ("tie_word_embeddings", True),
        ("tie_encoder_decoder", False),
    ):
        config.expect(key, value, "another design")
    vocab_size, shared = (
        config.size("vocab_size", 58_101, MAX_WIDE),
        config.flag("share_encoder_decoder_embeddings", True),
    )
    target_size = config.size("decoder_vocab_size", vocab_size, MAX_WIDE)
    num_layers, num_heads = config.size("encoder_layers", 12, MAX_LAYERS), config.size("encoder_attention_heads", 16)
    d_ff = config.size("encoder_ffn_dim", 4096, MAX_WIDE)
    return marian(
        num_layers=num_layers,
        num_decoder_layers=config.size("decoder_layers", 12, MAX_LAYERS),
        d_model=config.size("d_model", 1024),
        num_heads=num_heads,
        num_decoder_heads=config.size("decoder_attention_heads", 16),
        d_ff=d_ff,
        decoder_d_ff=config.size("decoder_ffn_dim", 4096, MAX_WIDE),
        vocab_size=vocab_size if shared else target_size,
        source_vocab_size=None if shared or target_size == vocab_size else vocab_size,
        shared=shared,
        scaled=config.flag("scale_embedding", False),
        context_length=config.size("max_position_embeddings", 1024, MAX_LENGTH),
        activation=config.activation("activation_function", "gelu"),
        dropout=config.rate("dropout", 0.1),
        attention_dropout=config.rate("attention_dropout", 0.0),
        std=config.positive("init_std", 0.02),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    pair = expect_kind(spec.EncoderDecoder, model, "kind")
    sides: dict[str, Any] = {}
    for side, stack in (("encoder", pair.encoder), ("decoder", pair.decoder)):
        mixer = expect_kind(spec.Attention, stack.layers[0].mixer, f"{side}.layers[0].mixer")
        feedforward = expect_kind(spec.MLP, stack.layers[0].feedforward, f"{side}.layers[0].feedforward")
        sides |= {
            f"{side}_layers": len(stack.layers),
            f"{side}_attention_heads": mixer.num_heads,
            f"{side}_ffn_dim": feedforward.width(pair.d_model),
            "activation_function": activation_name(feedforward.activation),
            "attention_dropout": mixer.dropout,
        }
    return sides | {
        "vocab_size": pair.source_vocab_size or pair.vocab_size,
        "decoder_vocab_size": pair.vocab_size,
        "share_encoder_decoder_embeddings": pair.embedding.shared,
        "max_position_embeddings": pair.context_length,
        "d_model": pair.d_model,
        "scale_embedding": pair.embedding.scale != 1.0,
        "dropout": pair.embedding.dropout,
        "init_std": getattr(pair.initialization, "std", 0.02),
        "is_encoder_decoder": True,
    }


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """Two tables of vectors, or one for both sides."""
    pair = expect_kind(spec.EncoderDecoder, model, "kind")
    attention = (("self_attn", "mixer"), ("encoder_attn", "cross"))
    return (
        rule("model.shared.weight" if pair.embedding.shared else TARGET, "embedding.token.weight"),
        rule(SOURCE, "source_embedding.token.weight"),
        *_stack_rules("encoder", attention[:1]),
        *_stack_rules("decoder", attention),
        rule("final_logits_bias", "lm_head.bias", shape=(1, pair.vocab_size)),
    )


def _stack_rules(stack: str, attention: tuple[tuple[str, str], ...]) -> Iterator[Rule]:
    layer, ours = f"model.{stack}.layers.{{i}}.", f"{stack}.blocks.{{i}}."
    for theirs, part in attention:
        projections = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o"))
        yield from linear_rules(f"{layer}{theirs}.", f"{ours}{part}.", projections)
        yield from linear_rules(layer, ours, [(f"{theirs}_layer_norm", f"{part}_norm")])
    network = (("fc1", "feedforward.up"), ("fc2", "feedforward.down"), ("final_layer_norm", "feedforward_norm"))
    yield from linear_rules(layer, ours, network)


SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"

FAMILY = Family(
    "marian",
    presets(
        "Helsinki-NLP/opus-mt-* config.json (those with 58,101 tokens)",
        marian,
        {"opus-mt": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048)},
    ),
    Format(
        "marian",
        "MarianMTModel",
        read,
        write,
        rules,
        "",
        (r"model\.(encoder|decoder)\.embed_positions\.weight",),  # they are computed
        dict.fromkeys((SOURCE, TARGET, "lm_head.weight"), "embedding.token.weight"),
    ),
)
