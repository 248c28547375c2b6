"""ModernBERT (Warner 2024): rotary positions, gated feed-forward parts, full attention in every third layer.

Format: transformers' `modernbert`.
"""

from typing import Any

from archetype.families.classes import BARE, MASKED, SPANS, TEXTS, TOKENS, class_head, head_named, write_classes
from archetype.families.config import Config, activation_name
from archetype.families.encoder_format import Names, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Key, Row, Values, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, read_positions, write_positions
from archetype.families.standard_block import ALL_BIASES
from archetype.models.block.spec import Block, PreNorm
from archetype.models.encoder.spec import Encoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.parts.attention.spec import Attention, ProjectionBiases
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.head.spec import HeadTransform, MaskedLanguageModelHead
from archetype.parts.norm.spec import LayerNorm, NoNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.roles.activation import Activation
from archetype.roles.head import Head
from archetype.roles.pattern import Pattern
from archetype.spec.base import Spec
from archetype.spec.repeats import cycle

WINDOW = 128
DEFAULT_PATTERNS = Full(), Window(size=WINDOW), Window(size=WINDOW)


def modernbert(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    vocab_size: int = 50_368,
    context_length: int = 8192,
    patterns: tuple[Pattern, ...] = DEFAULT_PATTERNS,
    position: Rotary = Rotary(theta=160_000.0),
    local_position: Rotary = Rotary(theta=10_000.0),
    activation: Activation | str = "gelu",
    eps: float = 1e-5,
    norm_bias: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    head: Head | None = None,
    tied: bool = True,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    std: float = 0.02,
    **model: Any,
) -> Encoder:
    """Build a ModernBERT encoder, by default with a masked language modelling head.

    Args:
        patterns: attention patterns, cycled over the layers.
        position: position encoding in layers with full attention.
        local_position: position encoding in layers with a window.
        norm_bias: whether norms have a bias.
        tied: whether the head uses the embedding table.
        model: additional fields of `spec.Encoder`.
    """
    norm = LayerNorm(eps=eps, bias=norm_bias)

    def block(pattern: Pattern) -> Block:
        mixer = Attention(
            num_heads=num_heads,
            bias=ALL_BIASES if attention_bias else ProjectionBiases(),
            pattern=pattern,
            position=local_position if isinstance(pattern, Window) else position,
            dropout=attention_dropout,
        )
        network = GatedMLP(d_ff=d_ff, activation=activation, bias=mlp_bias)
        return Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=network)

    # the embedding ends with a norm, so the first attention has none (`attn_norm` is an identity in layer 0)
    first, *others = cycle(num_layers, *map(block, patterns))
    first = first.replace(wiring=PreNorm(norm=norm, mixer_norm=NoNorm()))
    return Encoder(
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=Embedding(norm=norm, dropout=embedding_dropout),
        layers=(first, *others),
        final_norm=norm,
        head=head or MaskedLanguageModelHead(norm=norm, tied=tied, dense_bias=False),
        initialization=NormalInitialization(std=std),
        **model,
    )


def _read_layers(config: Config, values: Values) -> Values:
    every, size = config.size("global_attn_every_n_layers", 3), config.size("local_attention", WINDOW)
    patterns = read_patterns(config, values["num_layers"], size, lambda i: SLIDING if i % every else FULL)
    thetas = {FULL: config.positive("global_rope_theta", 1.6e5), SLIDING: config.positive("local_rope_theta", 1e4)}
    head_dim = values["d_model"] // values["num_heads"]
    config.expect("head_dim", head_dim, "heads of another width")
    positions = read_positions(config, head_dim, values["context_length"], thetas, scaled=(FULL, SLIDING))
    return {"patterns": patterns, "position": positions[FULL], "local_position": positions[SLIDING]}


def _write_layers(model: Encoder) -> dict[str, Any]:
    written = write_positions(model)
    return {name: written[name] for name in ("layer_types", "rope_parameters")} | {
        "local_attention": written["sliding_window"] or WINDOW
    }


POOLINGS = {"cls": "first", "mean": "mean"}


def _read_head(config: Config, values: Values) -> Values:
    # every head begins with a dense layer and a norm
    transform = HeadTransform(
        activation=config.activation("classifier_activation", "gelu"),
        norm=LayerNorm(eps=values["eps"], bias=values["norm_bias"]),
        bias=config.flag("classifier_bias", False),
    )
    tied, bias = config.flag("tie_word_embeddings", True), config.flag("decoder_bias", True)
    pooling, dropout = config.get("classifier_pooling", "cls"), config.rate("classifier_dropout", 0.0)
    if pooling not in POOLINGS:
        raise config.error("classifier_pooling", f"{pooling!r} is not supported", f"use one of {', '.join(POOLINGS)}")
    ending = head_named(config, MASKED, TEXTS, TOKENS, SPANS, BARE)
    head = class_head(config, ending, dropout=dropout, transform=transform) or MaskedLanguageModelHead(
        activation=transform.activation, norm=transform.norm, tied=tied, bias=bias, dense_bias=transform.bias
    )
    return {"head": head} | ({"pooling": POOLINGS[pooling]} if ending == TEXTS else {})


def _write_head(model: Encoder) -> dict[str, Any]:
    head: Any = model.head
    names = {ours: theirs for theirs, ours in POOLINGS.items()}
    written: dict[str, Any] = {"classifier_pooling": names.get(model.pooling, "cls")}
    if head.predicts_masked:
        written |= {"tie_word_embeddings": head.tied, "decoder_bias": head.bias}
        head = getattr(head.as_language_model_head, "transform")  # noqa: B009
    elif head.has_classes:
        written["classifier_dropout"] = head.dropout
        head = head.transform
    if isinstance(head, HeadTransform):
        written |= {"classifier_activation": activation_name(head.activation), "classifier_bias": head.bias}
    return written | write_classes(model)


KEYS: tuple[Row, ...] = (
    # settings of computation, and keys of early files that duplicate others
    ignored("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
        "repad_logits_with_grad", "initializer_cutoff_factor", "mlp_dropout", "layer_norm_eps",
        "position_embedding_type"),
    Key("hidden_size", "d_model", 768),
    Key("num_hidden_layers", "num_layers", 22),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 1152),
    Key("vocab_size", "vocab_size", 50_368),
    Key("max_position_embeddings", "context_length", 8192),
    Converted(_read_layers, _write_layers),
    Key("hidden_activation", "activation", "gelu"),
    Key("norm_eps", "eps", 1e-5),
    Key("norm_bias", "norm_bias", False, check=Config.flag, path="final_norm.bias"),
    Key("attention_bias", "attention_bias", False),
    Key("mlp_bias", "mlp_bias", False),
    Key("embedding_dropout", "embedding_dropout", 0.0, check=Config.rate, path="embedding.dropout"),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("initializer_range", "std", 0.02),
    Converted(_read_head, _write_head),
)
PARTS: dict[str, type[Spec]] = {
    "final_norm": LayerNorm,
    "block.wiring": PreNorm,
    "block.mixer": Attention,
    "block.feedforward": GatedMLP,
}
NAMES = Names(
    body="""
        BASE.embeddings.tok_embeddings         embedding.token
        BASE.embeddings.norm                   embedding.norm
        BASE.layers.{i}.attn.Wqkv              blocks.{i}.mixer.{q,k,v}
        BASE.layers.{i}.attn.Wo                blocks.{i}.mixer.o
        BASE.layers.{i}.{attn_norm,mlp_norm}   blocks.{i}.{mixer_norm,feedforward_norm}
        BASE.layers.{i}.mlp.Wi                 blocks.{i}.feedforward.{gate,up}
        BASE.layers.{i}.mlp.Wo                 blocks.{i}.feedforward.down
        BASE.final_norm                        final_norm
    """,
    transform="head.{dense,norm}", logits="decoder", tied_bias="decoder.bias", spans="classifier",
)
FAMILY = Family("modernbert", {
    **presets("Warner 2024, table 4; answerdotai/ModernBERT-* config.json", modernbert, {
        "modernbert-base": dict(num_layers=22, d_model=768, num_heads=12, d_ff=1152),
        "modernbert-large": dict(num_layers=28, d_model=1024, num_heads=16, d_ff=2624),
    }),
    **tiny(modernbert, {
        "modernbert-tiny": dict(num_layers=2, num_heads=4, d_ff=96, vocab_size=257,
            patterns=(Full(), Window(size=32))),
    }),
}, encoder_format("modernbert", "ModernBert", "model", modernbert, KEYS, NAMES, PARTS))
