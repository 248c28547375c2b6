"""BERT-like encoders of other transformers model types, each as a row with its differences from BERT.

They have no presets, only formats to read and write published weights.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from archetype.families.bert import BODY_KEYS, DESIGN, HeadRow, bert
from archetype.families.config import Config
from archetype.families.encoder_format import BODY, PARTS, ROBERTA_NAMES, Names, encoder_format
from archetype.families.family import Family
from archetype.families.format import Format
from archetype.families.keys import Converted, Expected, Key, Row, Values, expect_kind, ignored, with_defaults
from archetype.families.roberta import KEYS as ROBERTA_KEYS
from archetype.families.roberta import PADDING, roberta
from archetype.families.rope import read_rotary, write_rotary
from archetype.families.standard_block import changed, first_attention
from archetype.models.block.spec import PostNorm, PreNorm
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import ProjectionBiases
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import NoPosition, RelativeBias, Rotary
from archetype.roles.position import MixerPosition

Build = Callable[..., Encoder]


def pre_norm(build: Build, embedding_norm: bool = True) -> Build:
    """Return a constructor for the same encoders with pre-norm and a final norm."""

    def built(**design: Any) -> Encoder:
        encoder = build(**design)
        norm = expect_kind(PostNorm, encoder.layers[0].wiring, "layers[0].wiring").norm
        embedding = encoder.embedding if embedding_norm else encoder.embedding.replace(norm=NoNorm())
        pre_normed = changed(encoder, wiring=lambda _: PreNorm(norm=norm))
        return pre_normed.replace(final_norm=norm, embedding=embedding)

    return built


def in_attention(encoder: Encoder, position: MixerPosition, **attention: Any) -> Any:
    # instead of positions added to the embedding
    return changed(encoder, mixer=lambda mixer: mixer.replace(position=position, **attention))


def mpnet(**design: Any) -> Encoder:
    """Build RoBERTa without token types and with a relative bias on attention scores (Song 2020)."""
    return in_attention(roberta(offset=PADDING + 1, num_token_types=0, **design), RelativeBias())


def roformer(**design: Any) -> Encoder:
    """Build BERT with interleaved rotary positions (Su 2021)."""
    return in_attention(bert(position=NoPosition(), **design), Rotary(interleaved=True))


def nomic(*, rotary: Rotary, head_dim: int, **design: Any) -> Encoder:
    """Build BERT with rotary positions, gated feed-forward parts and no biases (Nussbaum 2024)."""
    encoder = in_attention(bert(position=NoPosition(), **design), rotary, bias=ProjectionBiases(), head_dim=head_dim)
    return gated(encoder)


def gte(*, rotary: Rotary, head_dim: int, **design: Any) -> Encoder:
    """Build BERT with rotary positions and gated feed-forward parts with an output bias (Zhang 2024)."""
    encoder = bert(position=NoPosition(), head_activation="gelu", **design)
    return gated(in_attention(encoder, rotary, head_dim=head_dim), down_bias=True)


def gated(encoder: Encoder, down_bias: bool | None = None) -> Any:
    """Replace feed-forward parts with gated ones of the same width, without biases except `down_bias`."""
    network = expect_kind(MLP, encoder.layers[0].feedforward, "layers[0].feedforward")
    part = GatedMLP(d_ff=network.d_ff, activation=network.activation, down_bias=down_bias)
    return changed(encoder, feedforward=lambda _: part)


def without(rows: tuple[Row, ...], *names: str) -> tuple[Row, ...]:
    return tuple(row for row in rows if getattr(row, "names", getattr(row, "name", None)) not in names)


def named(rows: tuple[Row, ...], **names: str) -> tuple[Row, ...]:
    return tuple(
        replace(row, names=names.get(row.names, row.names)) if isinstance(row, Key) and isinstance(row.names, str)
        else row for row in rows
    )


def spelled(names: dict[str, str], further: str) -> str:
    """Return BERT's rules with other tensor names and an additional line."""
    table = BODY
    for ours, theirs in names.items():
        table = table.replace(ours, theirs)
    return f"{table}    {further}\n"


def norms(attention: str, network: str) -> dict[str, str]:
    return {"{i}.attention.output.LayerNorm": f"{{i}}.{attention}", "{i}.output.LayerNorm": f"{{i}}.{network}"}


MASK_OFFSET = Converted(
    # fairseq's table also has rows for the padding id and the ids before it
    lambda config, values: {"context_length": values["context_length"] - PADDING - 1},
    lambda model: {"max_position_embeddings": model.context_length + PADDING + 1},
)
DISTILBERT = named(
    without(BODY_KEYS, "layer_norm_eps", "type_vocab_size"), hidden_size="dim", num_hidden_layers="n_layers",
    num_attention_heads="n_heads", intermediate_size="hidden_dim", hidden_act="activation",
    hidden_dropout_prob="dropout", attention_probs_dropout_prob="attention_dropout",
)


def _read_width(config: Config, values: Values) -> Values:
    width = config.size("embedding_size", values["d_model"])
    return {"width": None if width == values["d_model"] else width}


def _write_width(model: Encoder) -> dict[str, Any]:
    return {"embedding_size": model.embedding.table_width or model.d_model}


WIDTH = Converted(_read_width, _write_width)
PROJECT = """
    BASE.embeddings_project   embedding.project
"""


def of_width(build: Build) -> Build:
    """Return a constructor for the same encoders with a `width` of embedding and masked language modelling head."""

    def built(*, width: int | None, **design: Any) -> Encoder:
        encoder = build(**design)
        head = encoder.head.replace(width=width) if encoder.head.predicts_masked else encoder.head
        return encoder.replace(embedding=encoder.embedding.replace(width=width), head=head)

    return built


def whole_heads(theta: float) -> Converted:
    """Return the row for rotary positions that rotate all features of a head. `theta` is transformers' default."""

    def read(config: Config, values: Values) -> Values:
        head_dim = config.size("head_dim", values["d_model"] // values["num_heads"])
        return {"rotary": read_rotary(config, head_dim, values["context_length"], theta), "head_dim": head_dim}

    def write(model: Encoder) -> dict[str, Any]:
        attention = first_attention(model)
        rotary = expect_kind(Rotary, attention.position, "layers[0].mixer.position")
        head_dim = attention.sizes(model.d_model).head_dim
        return {"rope_parameters": write_rotary(rotary, head_dim), "head_dim": head_dim}

    return Converted(read, write)


DISTILBERT_NAMES = Names(
    body="""
        BASE.embeddings.{word,position}_embeddings                embedding.{token,position}
        BASE.embeddings.LayerNorm                                 embedding.norm
        BASE.transformer.layer.{i}.attention.{q,k,v,out}_lin      blocks.{i}.mixer.{q,k,v,o}
        BASE.transformer.layer.{i}.{sa,output}_layer_norm         blocks.{i}.{mixer_norm,feedforward_norm}
        BASE.transformer.layer.{i}.ffn.{lin1,lin2}                blocks.{i}.feedforward.{up,down}
    """,
    transform="{vocab_transform,vocab_layer_norm}", logits="vocab_projector", tied_bias="vocab_projector.bias",
    class_pooler="pre_classifier",
)
MPNET_NAMES = replace(
    ROBERTA_NAMES,
    body=spelled(
        {"self.{query,key,value}": "attn.{q,k,v}", "attention.output.dense": "attention.attn.o"}
        | norms("attention.LayerNorm", "output.LayerNorm"),
        "BASE.encoder.relative_attention_bias   position_bias",
    ),
)
MEGATRON_NAMES = Names(spelled(norms("attention.ln", "ln"), "BASE.encoder.ln   final_norm"))
PRE_LAYER_NORM_NAMES = replace(
    ROBERTA_NAMES,
    body=spelled(norms("attention.LayerNorm", "intermediate.LayerNorm"), "BASE.LayerNorm   final_norm"),
)
XL_NAMES = replace(
    ROBERTA_NAMES,
    body=spelled(norms("attention.self_attn_layer_norm", "LayerNorm"), "BASE.encoder.LayerNorm   final_norm"),
)
ELECTRA_NAMES = Names(
    BODY + PROJECT, transform="generator_predictions.{dense,LayerNorm}", logits="generator_lm_head",
    tied_bias="generator_lm_head.bias", class_pooler="classifier.dense", classifier="classifier.out_proj",
)
ROFORMER_NAMES = Names(BODY + PROJECT, class_pooler="classifier.dense", classifier="classifier.out_proj")
NOMIC_NAMES = Names(
    body="""
        BASE.embeddings.{word,token_type}_embeddings    embedding.{token,token_type}
        BASE.emb_ln                                     embedding.norm
        BASE.encoder.layers.{i}.attn.Wqkv               blocks.{i}.mixer.{q,k,v}
        BASE.encoder.layers.{i}.attn.out_proj           blocks.{i}.mixer.o
        BASE.encoder.layers.{i}.{norm1,norm2}           blocks.{i}.{mixer_norm,feedforward_norm}
        BASE.encoder.layers.{i}.mlp.{fc11,fc12,fc2}     blocks.{i}.feedforward.{up,gate,down}
    """,
    transform="cls.predictions.transform.{dense,layer_norm}",
)

GTE_NAMES = Names(
    body="""
        BASE.embeddings.{word,token_type}_embeddings    embedding.{token,token_type}
        BASE.embeddings.LayerNorm                       embedding.norm
        BASE.encoder.layer.{i}.attention.qkv_proj       blocks.{i}.mixer.{q,k,v}
        BASE.encoder.layer.{i}.attention.o_proj         blocks.{i}.mixer.o
        BASE.encoder.layer.{i}.{attn_ln,mlp_ln}         blocks.{i}.{mixer_norm,feedforward_norm}
        BASE.encoder.layer.{i}.mlp.up_gate_proj         blocks.{i}.feedforward.{up,gate}
        BASE.encoder.layer.{i}.mlp.down_proj            blocks.{i}.feedforward.down
    """,
    transform="lm_head.{dense,norm}", logits="lm_head.decoder", tied_bias="lm_head.decoder.bias",
)

GATED_PARTS = PARTS | {"block.feedforward": GatedMLP}
PRE_NORM_PARTS = PARTS | {"block.wiring": PreNorm}
# settings of other heads
SUMMARY = ignored("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
FORMATS: tuple[Format, ...] = (
    encoder_format("xlm-roberta", "XLMRoberta", "roberta", roberta, ROBERTA_KEYS, ROBERTA_NAMES),
    encoder_format("camembert", "Camembert", "roberta", roberta, ROBERTA_KEYS, ROBERTA_NAMES),
    encoder_format("data2vec-text", "Data2VecText", "data2vec_text", roberta, ROBERTA_KEYS, ROBERTA_NAMES),
    encoder_format("roberta-prelayernorm", "RobertaPreLayerNorm", "roberta_prelayernorm", pre_norm(roberta),
        ROBERTA_KEYS, PRE_LAYER_NORM_NAMES, PRE_NORM_PARTS),
    encoder_format("xlm-roberta-xl", "XLMRobertaXL", "roberta", pre_norm(roberta, embedding_norm=False),
        with_defaults(ROBERTA_KEYS, layer_norm_eps=1e-5, type_vocab_size=1), XL_NAMES, PRE_NORM_PARTS),
    encoder_format("ernie", "Ernie", "ernie", bert, (
        *DESIGN,
        Expected("use_task_id", False, "task embeddings"),
        ignored("task_type_vocab_size"),
    )),
    encoder_format("megatron-bert", "MegatronBert", "bert", pre_norm(bert, embedding_norm=False), DESIGN,
        MEGATRON_NAMES, PRE_NORM_PARTS),
    encoder_format("electra", "Electra", "electra", of_width(partial(bert, head_activation="gelu")), (
        *BODY_KEYS, WIDTH, SUMMARY, HeadRow(pooled=False, activation="gelu", pretraining=False),
    ), ELECTRA_NAMES),
    encoder_format("roformer", "RoFormer", "roformer", of_width(roformer), (
        *with_defaults(BODY_KEYS, max_position_embeddings=1536),
        WIDTH,
        Expected("rotary_value", False, "rotated values"),
        HeadRow(pooled=False, activation="activation"),
    ), ROFORMER_NAMES, ignored=(r"(roformer\.)?encoder\.embed_positions\.weight",)),
    encoder_format("distilbert", "DistilBert", "distilbert", partial(bert, num_token_types=0), (
        *DISTILBERT,
        # fixed sinusoids stored in a file are read like a learned table
        ignored("qa_dropout", "sinusoidal_pos_embds", "tie_weights_"),
        HeadRow("seq_classif_dropout", pooled=False, activation="relu"),
    ), DISTILBERT_NAMES),
    encoder_format("mpnet", "MPNet", "mpnet", mpnet, (
        *without(BODY_KEYS, "type_vocab_size"),
        MASK_OFFSET,
        # MPNet's class passes 32 to its bucket function, whatever the key says
        Expected("relative_attention_num_buckets", 32, "another number of buckets than in its code"),
        HeadRow(),
    ), MPNET_NAMES),
    encoder_format("nomic_bert", "NomicBert", "nomic_bert", nomic, (
        *with_defaults(BODY_KEYS, hidden_act="silu", max_position_embeddings=2048),
        whole_heads(1000.0),
        HeadRow(pooled=False, spans=False),
    ), NOMIC_NAMES, GATED_PARTS),
    encoder_format("gte", "Gte", "gte", gte, (
        *with_defaults(without(BODY_KEYS, "type_vocab_size"), vocab_size=250_048, attention_probs_dropout_prob=0.0,
            max_position_embeddings=8192),
        Key("type_vocab_size", "num_token_types", 1, check=Config.count),
        whole_heads(160_000.0),
        HeadRow(pooled=False, spans=False),
    ), GTE_NAMES, GATED_PARTS),
)
FAMILIES = {format.model_type: Family(format.model_type, {}, format) for format in FORMATS}
