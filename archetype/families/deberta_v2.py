"""DeBERTa v2 and v3 (He 2020, 2021): BERT with disentangled attention to content and distance.

Format: transformers' `deberta-v2`.
"""

from typing import Any

from archetype.families.bert import BODY_KEYS as BERT_KEYS
from archetype.families.bert import HeadRow, bert
from archetype.families.config import Config
from archetype.families.encoder_format import BODY, Names, encoder_format
from archetype.families.encoder_format import PARTS as BERT_PARTS
from archetype.families.encoders import without
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Expected, Key, Row, Values, expect_kind, ignored, with_defaults
from archetype.families.standard_block import changed
from archetype.models.encoder.spec import Encoder
from archetype.parts.disentangled_attention.spec import DisentangledAttention, RelativeVectors
from archetype.parts.norm.spec import LayerNorm, NoNorm
from archetype.parts.position.spec import Learned, NoPosition

DIRECTIONS = {"c2p": "content_to_position", "p2c": "position_to_content"}


def deberta(
    *,
    num_heads: int,
    num_buckets: int = 256,
    max_distance: int | None = 512,
    vector_norm: bool = True,
    added_positions: bool = False,
    num_token_types: int = 0,
    eps: float = 1e-7,
    attention_dropout: float = 0.0,
    attention: dict[str, Any] | None = None,
    **design: Any,
) -> Encoder:
    """Build a DeBERTa v3 encoder. `design` takes the arguments of `bert`.

    Args:
        num_buckets: number of buckets for distances in each direction.
        max_distance: distance at which the last bucket begins (None: one bucket per distance).
        vector_norm: whether distance vectors are normalized.
        added_positions: whether learned positions are added to the embedding too.
        attention: additional fields of `spec.DisentangledAttention`.
    """
    position = Learned() if added_positions else NoPosition()
    encoder = bert(num_heads=num_heads, position=position, num_token_types=num_token_types, eps=eps, **design)
    norm = LayerNorm(eps=eps) if vector_norm else NoNorm()
    vectors = RelativeVectors(num_buckets=num_buckets, max_distance=max_distance, norm=norm)
    mixer = DisentangledAttention(num_heads=num_heads, vectors=vectors, dropout=attention_dropout, **(attention or {}))
    return changed(encoder, mixer=lambda _: mixer)


def attention_of(model: Encoder) -> DisentangledAttention:
    return expect_kind(DisentangledAttention, model.layers[0].mixer, "layers[0].mixer")


def read_directions(config: Config, values: Values) -> tuple[dict[str, bool], int]:
    """Return the directions of attention to distances, and the longest distance. Refuse attention without distances."""
    config.expect("relative_attention", True, "attention without distances")
    names = config.get("pos_att_type")
    names = [name.strip() for name in names.lower().split("|")] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not set(names) <= set(DIRECTIONS):
        raise config.error("pos_att_type", f"{names!r} is not supported", f"use {' or '.join(DIRECTIONS)}, or both")
    longest = config.get("max_relative_positions", -1)
    # -1 and 0 mean the context length, as in transformers
    longest = config.size("max_relative_positions") if longest not in (None, -1, 0) else values["context_length"]
    return {field: name in names for name, field in DIRECTIONS.items()}, longest


def _read_distances(config: Config, values: Values) -> Values:
    fields, longest = read_directions(config, values)
    buckets = config.get("position_buckets", -1)
    # without `position_buckets` each distance has its own vector
    logarithmic = buckets not in (None, -1, 0)
    return {
        "num_buckets": config.size("position_buckets") if logarithmic else longest,
        "max_distance": longest if logarithmic else None,
        "attention": fields | {"own_projections": not config.flag("share_att_key", False)},
    }


def _write_distances(model: Encoder) -> dict[str, Any]:
    attention, vectors = attention_of(model), attention_of(model).vectors
    return {
        "relative_attention": True,
        "pos_att_type": [name for name, field in DIRECTIONS.items() if getattr(attention, field)],
        "share_att_key": not attention.own_projections,
        "position_buckets": vectors.num_buckets if vectors.max_distance is not None else -1,
        "max_relative_positions": vectors.max_distance or vectors.num_buckets,
    }


def _read_norm(config: Config, values: Values) -> Values:
    value = config.get("norm_rel_ebd", "none")
    names = [name.strip() for name in value.lower().split("|")] if isinstance(value, str) else []
    if not names or not set(names) <= {"none", "layer_norm"}:
        raise config.error("norm_rel_ebd", f"{value!r} is not supported", "use none or layer_norm")
    return {"vector_norm": "layer_norm" in names}


# Keys shared by all versions.
BODY_KEYS: tuple[Row, ...] = (
    *with_defaults(without(BERT_KEYS, "type_vocab_size"), vocab_size=128_100, hidden_size=1536, num_hidden_layers=24,
        num_attention_heads=24, intermediate_size=6144, layer_norm_eps=1e-7),
    ignored("pooler_dropout"),
    Key("type_vocab_size", "num_token_types", 0, check=Config.count),
    Key("position_biased_input", "added_positions", True, check=Config.flag,
        path=lambda model: isinstance(model.embedding.position, Learned)),
    Expected("embedding_size", lambda values: values["d_model"], "an embedding of another width"),
    Expected("legacy", True, "another masked language modelling head"),
    Expected("pooler_hidden_size", lambda values: values["d_model"], "a pooler of another width"),
    Expected("pooler_hidden_act", "gelu", "another activation of the pooler"),
    HeadRow("cls_dropout", pooled=False, activation="gelu"),
)
KEYS: tuple[Row, ...] = (
    *BODY_KEYS,
    Converted(_read_distances, _write_distances),
    Converted(_read_norm, lambda model: {
        "norm_rel_ebd": "none" if attention_of(model).vectors.norm.is_absent else "layer_norm"
    }),
    Expected("conv_kernel_size", 0, "a convolution after the first layer"),
    ignored("conv_act", "conv_groups"),
    Expected("attention_head_size", lambda values: values["d_model"] // values["num_heads"], "heads of another width"),
)
PARTS = BERT_PARTS | {"block.mixer": DisentangledAttention}
BODY_NAMES = BODY.replace("self.{query,key,value} ", "self.{query,key,value}_proj ")
NAMES = Names(f"""{BODY_NAMES}
    BASE.encoder.layer.{{i}}.attention.self.pos_{{key,query}}_proj   blocks.{{i}}.mixer.position_{{k,q}}
    BASE.encoder.rel_embeddings    position_bias
    BASE.encoder.LayerNorm         position_bias.norm
""", class_pooler="pooler.dense")
FAMILIES = {"deberta-v2": Family("deberta-v2", {
    **presets("He 2021, section 5; microsoft/deberta-v3-* config.json", deberta, {
        "deberta-v3-xsmall": dict(num_layers=12, d_model=384, num_heads=6, vocab_size=128_100),
        "deberta-v3-small": dict(num_layers=6, d_model=768, num_heads=12, vocab_size=128_100),
        "deberta-v3-base": dict(num_layers=12, d_model=768, num_heads=12, vocab_size=128_100),
        "deberta-v3-large": dict(num_layers=24, d_model=1024, num_heads=16, vocab_size=128_100),
    }),
    **tiny(deberta, {
        "deberta-v3-tiny": dict(num_layers=2, num_heads=4, vocab_size=257, num_buckets=32, max_distance=128),
    }),
}, encoder_format("deberta-v2", "DebertaV2", "deberta", deberta, KEYS, NAMES,
    PARTS, (r"(deberta\.)?embeddings\.position_embeddings\..*",
    r"mask_predictions\..*", r"lm_predictions\..*")))}
