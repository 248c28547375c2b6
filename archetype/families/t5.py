"""T5 (Raffel 2019) and T5 v1.1 (Shazeer 2020). Format: transformers' `t5`."""

import re
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from archetype.families.classes import TEXTS, head_named, read_pair_classes, write_pair_classes
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Values, expect_kind, ignored
from archetype.families.rules import Rule, weight_rules
from archetype.models.block.spec import Block, PreNorm
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import Stack
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import PairEmbedding
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import RelativeBias
from archetype.roles.activation import Activation
from archetype.roles.head import Head
from archetype.spec.repeats import repeat


def t5(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    head_dim: int = 64,
    num_decoder_layers: int | None = None,
    gated: bool = False,
    activation: Activation | str | None = None,
    tied: bool = True,
    scaled: bool | None = None,
    eps: float = 1e-6,
    num_buckets: int = 32,
    max_distance: int = 128,
    dropout: float = 0.0,
    std: float = 0.02,
    head: Head | None = None,
    **sizes: Any,
) -> EncoderDecoder:
    """Build an encoder-decoder with `num_layers` layers on each side, or with `num_decoder_layers` in the decoder.

    Scores are not scaled. T5 v1.1 has `gated` feed-forward parts with GELU, T5 ungated parts with ReLU. `scaled`
    (default: `tied`) divides the head's input by sqrt(d_model). `head` replaces the language modelling head.
    """
    norm = RMSNorm(eps=eps)
    # scale 1: T5 draws the query matrix with a smaller variance instead of dividing scores
    cross = Attention(num_heads=num_heads, head_dim=head_dim, scale=1.0, dropout=dropout)
    network = GatedMLP if gated else MLP
    # no biases, and norms without a mean (Raffel 2019, section 2.1)
    source = Block(
        wiring=PreNorm(norm=norm),
        mixer=cross.replace(position=RelativeBias(num_buckets=num_buckets, max_distance=max_distance)),
        feedforward=network(d_ff=d_ff, activation=activation or ("gelu_tanh" if gated else "relu")),
        dropout=dropout,
    )
    target = repeat(num_decoder_layers or num_layers, source.replace(cross_attention=cross))
    return EncoderDecoder(
        d_model=d_model,
        embedding=PairEmbedding(dropout=dropout),
        encoder=Stack(layers=repeat(num_layers, source), final_norm=norm),
        decoder=Stack(layers=target, final_norm=norm),
        # a tied table is scaled for embeddings, so the head's input is divided by sqrt(d_model)
        head=head or LanguageModelHead(tied=tied, scale=d_model**-0.5 if (tied if scaled is None else scaled) else 1.0),
        initialization=NormalInitialization(std=std),
        **({"vocab_size": 32_128, "context_length": 512} | sizes),
    )


def _read_feedforward(config: Config, values: Values) -> Values:
    # "gated-gelu" means the tanh approximation
    name = config.get("feed_forward_proj", "relu")
    activation = str(name).removeprefix("gated-")
    checked = Config({"feed_forward_proj": "gelu_new" if name == "gated-gelu" else activation}, config.place)
    return {"gated": activation != name, "activation": checked.activation("feed_forward_proj", "relu")}


def _write_feedforward(model: EncoderDecoder) -> dict[str, Any]:
    network = model.encoder.layers[0].feedforward
    gated = isinstance(network, GatedMLP)
    kind = GatedMLP if gated else MLP
    activation = activation_name(expect_kind(kind, network, "encoder.layers[0].feedforward").activation)
    return {"feed_forward_proj": f"gated-{activation}" if gated else activation}


def _read_head(config: Config, values: Values) -> Values:
    has_classes = head_named(config, "ForConditionalGeneration", TEXTS, "") == TEXTS  # `Format` checks the others
    return {"head": read_pair_classes(config)} if has_classes else {}


KEYS = ConfigTable(t5, (
    # settings of initialization, of another head, and what follows from feed_forward_proj
    ignored("initializer_factor", "classifier_dropout", "is_gated_act", "dense_act_fn", "output_past"),
    Converted(_read_head, write_pair_classes),
    Key("tie_word_embeddings", "tied", True),
    Key("num_layers", "num_layers", 6, path=lambda model: len(model.encoder.layers)),
    Converted(_read_feedforward, _write_feedforward),
    Key("num_decoder_layers", "num_decoder_layers", itemgetter("num_layers")),
    Key("d_model", "d_model", 512),
    Key("num_heads", "num_heads", 8),
    Key("d_ff", "d_ff", 2048),
    Key("d_kv", "head_dim", 64),
    Key("vocab_size", "vocab_size", 32_128),
    Key("n_positions", "context_length", 512),
    Key("scale_decoder_outputs", "scaled", itemgetter("tied"), check=Config.flag, path="head.scale",
        encode=lambda scale: scale != 1.0),
    Key("layer_norm_epsilon", "eps", 1e-6, path="encoder.final_norm.eps"),
    Key("relative_attention_num_buckets", "num_buckets", 32, path="block.mixer.position.num_buckets"),
    Key("relative_attention_max_distance", "max_distance", 128, path="block.mixer.position.max_distance"),
    Key("dropout_rate", "dropout", 0.1),
), EncoderDecoder, {
    "encoder.final_norm": RMSNorm,
    "block.mixer": Attention,
    "block.mixer.position": RelativeBias,
})


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    """Return the weight rules. In the file, each part of a block is a layer, and the first has the shared bias."""
    pair = expect_kind(EncoderDecoder, model, "kind")
    layers, prefix = pair.encoder.layers, CLASSES_PREFIX if pair.head.classifies else ""
    # gate, up and down; without a gate, the first has no line
    network = "{wi_0,wi_1,wo}" if isinstance(layers[0].feedforward, GatedMLP) else "{,wi,wo}"
    body = weight_rules(
        """
        shared                                             embedding.token
        {encoder,decoder}.block.0.layer.0.SelfAttention.relative_attention_bias   {encoder,decoder}.position_bias
        {encoder,decoder}.block.{i}.layer.0.SelfAttention.{q,k,v,o}   {encoder,decoder}.blocks.{i}.mixer.{q,k,v,o}
        {encoder,decoder}.block.{i}.layer.0.layer_norm     {encoder,decoder}.blocks.{i}.mixer_norm
        decoder.block.{i}.layer.1.EncDecAttention.{q,k,v,o}   decoder.blocks.{i}.cross.{q,k,v,o}
        decoder.block.{i}.layer.1.layer_norm               decoder.blocks.{i}.cross_norm
        encoder.block.{i}.layer.1.DenseReluDense.NETWORK   encoder.blocks.{i}.feedforward.{gate,up,down}
        decoder.block.{i}.layer.2.DenseReluDense.NETWORK   decoder.blocks.{i}.feedforward.{gate,up,down}
        encoder.block.{i}.layer.1.layer_norm               encoder.blocks.{i}.feedforward_norm
        decoder.block.{i}.layer.2.layer_norm               decoder.blocks.{i}.feedforward_norm
        {encoder,decoder}.final_layer_norm                 {encoder,decoder}.final_norm
        lm_head                                            lm_head
    """.replace("NETWORK", network)
    )
    head = weight_rules("classification_head.{dense,out_proj}   {classifier.dense,classifier}")
    return (*(replace(rule_of_body, hf=f"{prefix}{rule_of_body.hf}") for rule_of_body in body), *head)


def t5_format(model_type: str, name: str, keys: ConfigTable) -> Format:
    def architecture(model: ModelSpec) -> str:
        has_classes = expect_kind(EncoderDecoder, model, "kind").head.classifies
        return f"{name}{TEXTS if has_classes else 'ForConditionalGeneration'}"

    prefix = re.escape(CLASSES_PREFIX)
    unread = rf"({prefix})?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    copies = (*COPIES, *(f"{CLASSES_PREFIX}{copy}" for copy in COPIES))
    return Format(model_type, architecture, keys, rules, "", (unread,), dict.fromkeys(copies, "embedding.token.weight"))


CLASSES_PREFIX = "transformer."  # of all tensors but the head's in the class for text classification
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
FAMILY = Family("t5", {
    **presets("Raffel 2019, section 3.7; google-t5/t5-* config.json", t5, {
        "t5-small": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
        "t5-base": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
        "t5-large": dict(num_layers=24, d_model=1024, num_heads=16, d_ff=4096),
        "t5-3b": dict(num_layers=24, d_model=1024, num_heads=32, d_ff=16_384, head_dim=128),
        "t5-11b": dict(num_layers=24, d_model=1024, num_heads=128, d_ff=65_536, head_dim=128),
    }),
    **presets("Shazeer 2020; google/t5-v1_1-* config.json", partial(t5, gated=True, tied=False), {
        "t5-v1.1-small": dict(num_layers=8, d_model=512, num_heads=6, d_ff=1024),
        "t5-v1.1-base": dict(num_layers=12, d_model=768, num_heads=12, d_ff=2048),
        "t5-v1.1-large": dict(num_layers=24, d_model=1024, num_heads=16, d_ff=2816),
        "t5-v1.1-xl": dict(num_layers=24, d_model=2048, num_heads=32, d_ff=5120),
        "t5-v1.1-xxl": dict(num_layers=24, d_model=4096, num_heads=64, d_ff=10_240),
    }),
    # with std 0.02 the head's scale keeps logits near 0 for many steps
    **tiny(t5, {
        # 256 bytes and 128 sentinels
        "t5-tiny": dict(num_layers=2, num_heads=4, head_dim=16, d_ff=256, std=0.1, vocab_size=263),
    }),
}, t5_format("t5", "T5", KEYS))
