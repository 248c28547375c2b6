"""Encoder-decoders of other transformers model types, each as a row with its differences from Marian or T5."""

from collections.abc import Callable
from functools import partial
from typing import Any

from archetype.families.classes import BARE, TEXTS, head_named, read_pair_classes, write_pair_classes
from archetype.families.config import Config
from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.keys import (
    ConfigTable,
    Converted,
    Expected,
    Key,
    Row,
    Values,
    expect_kind,
    ignored,
    with_defaults,
)
from archetype.families.marian import COMPUTED, PAIR_COPIES, PAIR_KEYS, PAIR_LAYERS, PAIR_PARTS, marian
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import changed
from archetype.families.t5 import KEYS as T5_KEYS
from archetype.families.t5 import t5, t5_format
from archetype.models.block.spec import PreNorm
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import Stack
from archetype.parts.embedding.spec import Embedding, PairEmbedding
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm, NoNorm
from archetype.parts.position.spec import Learned, Sinusoidal
from archetype.roles.head import Head
from archetype.roles.position import EmbeddingPosition

NORM = LayerNorm()


def transformer_pair(
    *,
    position: EmbeddingPosition,
    embedding_norm: bool = False,
    norm_first: bool = False,
    pre_norm: bool = False,
    logits_bias: bool = True,
    head: Head | None = None,
    **design: Any,
) -> EncoderDecoder:
    """Build an encoder-decoder with a shared embedding table. `design` takes the arguments of `marian`.

    Args:
        position: position embeddings added to token vectors. Learned position embeddings are separate for each side.
        embedding_norm: whether each side normalizes the embedding.
        norm_first: whether the decoder's norm precedes the addition of position embeddings.
        pre_norm: whether to use pre-norm, with a norm after the last layer of each side.
        logits_bias: whether the logits have a bias.
    """
    pair = marian(**design)
    placed: dict[str, Any] = {"position": position, "norm": NORM if embedding_norm else NoNorm()}
    table = expect_kind(PairEmbedding, pair.embedding, "embedding").replace(**placed, norm_first=norm_first)
    # parameters besides the token table are separate for each side
    if position.limits_length or embedding_norm:
        table = table.replace(source=Embedding(scale=table.scale, dropout=table.dropout, **placed))
    pair = pair.replace(embedding=table, head=head or LanguageModelHead(tied=True, bias=logits_bias))
    return pair.replace(encoder=_pre_norm(pair.encoder), decoder=_pre_norm(pair.decoder)) if pre_norm else pair


def _pre_norm(stack: Stack) -> Stack:
    return changed(stack, wiring=lambda _: PreNorm(norm=NORM)).replace(final_norm=NORM)


def m2m(*, offset: int, d_model: int, **design: Any) -> EncoderDecoder:
    """Build a pre-norm encoder-decoder whose positions start after the padding id (Fan 2020)."""
    # the exponents of the wavelengths go from 0 to 1 inclusive, as in tensor2tensor
    half = max(d_model // 2, 2)
    waves = Sinusoidal(theta=10_000.0 ** (half / (half - 1)), interleaved=False, offset=offset)
    return transformer_pair(position=waves, pre_norm=True, d_model=d_model, **design)


def _read_class(config: Config, values: Values) -> Values:
    # a file saved without a head has no bias of the logits
    ending = head_named(config, "ForConditionalGeneration", TEXTS, BARE)
    head = read_pair_classes(config) if ending == TEXTS else None
    return {"logits_bias": ending == "ForConditionalGeneration", "head": head}


def _read_padding(config: Config, values: Values) -> Values:
    return {"offset": config.count("pad_token_id", 1) + 1, "logits_bias": False}


def _write_padding(model: EncoderDecoder) -> dict[str, Any]:
    embedding = expect_kind(Embedding, model.embedding, "embedding")
    offset = expect_kind(Sinusoidal, embedding.position, "embedding.position").offset
    return {"pad_token_id": max(offset - 1, 0)}


# Keys of fairseq that these classes do not read.
FAIRSEQ = ignored("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits",
    "static_position_embeddings", "force_bos_token_to_be_generated", "output_past")
KEYS: tuple[Row, ...] = (
    Key("vocab_size", "vocab_size", 50_265), *PAIR_KEYS, FAIRSEQ, Converted(_read_class, write_pair_classes),
)
M2M_KEYS: tuple[Row, ...] = (
    Key("vocab_size", "vocab_size", 128_112),
    *with_defaults(PAIR_KEYS, activation_function="relu", scale_embedding=True, attention_dropout=0.1),
    FAIRSEQ,
    Converted(_read_padding, _write_padding),
)


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    pair = expect_kind(EncoderDecoder, model, "kind")
    return (
        rule("model.shared.weight", "embedding.token.weight"),
        *weight_rules(f"""{PAIR_LAYERS}
            model.{{decoder,encoder}}.embed_positions       {{embedding,source_embedding}}.position
            model.{{decoder,encoder}}.layernorm_embedding   {{embedding,source_embedding}}.norm
            model.{{encoder,decoder}}.layer_norm            {{encoder,decoder}}.final_norm
            classification_head.{{dense,out_proj}}          {{classifier.dense,classifier}}
        """),
        rule("final_logits_bias", "lm_head.bias", shape=(1, pair.vocab_size)),
    )


def pair_format(
    model_type: str,
    name: str,
    build: Callable[..., EncoderDecoder],
    keys: tuple[Row, ...] = KEYS,
    has_classes: bool = False,
) -> Format:
    """Build the format of a model type whose classes begin with `name`. `has_classes` allows text classification."""

    def architecture(model: ModelSpec) -> str:
        head = expect_kind(EncoderDecoder, model, "kind").head
        if head.classifies and has_classes:
            return f"{name}{TEXTS}"
        head = expect_kind(LanguageModelHead, head, "head")
        return f"{name}ForConditionalGeneration" if head.bias or keys is M2M_KEYS else f"{name}Model"

    table = ConfigTable(build, keys, EncoderDecoder, PAIR_PARTS)
    return Format(model_type, architecture, table, rules, "model.", (COMPUTED,), PAIR_COPIES)


BART = partial(transformer_pair, position=Learned(offset=2), embedding_norm=True)
PROMPTS = (Expected("use_prompt", False, "learned prompts"), ignored("prompt_length", "prompt_mid_dim"))
MT5 = ConfigTable(partial(t5, scaled=False), with_defaults(
    tuple(row for row in T5_KEYS.rows if getattr(row, "argument", "") != "scaled"), vocab_size=250_112,
), EncoderDecoder, T5_KEYS.parts)
FORMATS: tuple[Format, ...] = (
    pair_format("bart", "Bart", BART, has_classes=True),
    pair_format("plbart", "PLBart", BART, with_defaults(KEYS, attention_dropout=0.1, scale_embedding=True), True),
    pair_format("mvp", "Mvp", BART, (*KEYS, *PROMPTS), True),
    pair_format("mbart", "MBart", partial(BART, pre_norm=True), has_classes=True),
    pair_format("pegasus", "Pegasus",
        partial(transformer_pair, position=Sinusoidal(interleaved=False), pre_norm=True)),
    pair_format("blenderbot", "Blenderbot", partial(transformer_pair, position=Learned(), pre_norm=True)),
    # only its decoder normalizes before it adds positions
    pair_format("blenderbot-small", "BlenderbotSmall",
        partial(transformer_pair, position=Learned(), embedding_norm=True, norm_first=True)),
    pair_format("m2m_100", "M2M100", m2m, M2M_KEYS),
    t5_format("mt5", "MT5", MT5),
)
FAMILIES = {format.model_type: Family(format.model_type, {}, format) for format in FORMATS}
