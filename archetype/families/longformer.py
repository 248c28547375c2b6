"""Longformer (Beltagy 2020): RoBERTa with a window and global tokens; as transformers' `longformer` writes it."""

from typing import Any

from archetype.families.bert import BODY, DESIGN, PARTS, architecture, bert, masked_rules
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Values, expect_kind, ignored
from archetype.families.rules import Rule, weight_rules
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead
from archetype.parts.pattern.spec import GlobalWindow
from archetype.parts.position.spec import Learned
from archetype.spec.base import MAX_SIZE

PADDING = 1  # RoBERTa's id of padding: positions are counted from the next number on


def longformer(
    *,
    windows: tuple[int, ...] = (512,),
    num_global_tokens: int = 1,
    vocab_size: int = 50_265,
    context_length: int = 4096,
    offset: int = PADDING + 1,
    eps: float = 1e-5,
    num_token_types: int = 1,
    **design: Any,
) -> Encoder:
    """An encoder of Longformer's design; the global tokens have projections of their own; `design` is as in `bert`.

    `windows` are the layers' in turn, both sides together.
    """
    return bert(
        vocab_size=vocab_size,
        context_length=context_length,
        num_token_types=num_token_types,
        eps=eps,
        position=Learned(offset=offset),
        patterns=tuple(
            GlobalWindow(size=window, num_global_tokens=num_global_tokens, global_projections=True)
            for window in windows
        ),
        head_activation="gelu",
        **design,
    )


def _read_positions(config: Config, values: Values) -> Values:
    """Positions are counted from the number after padding's, and the table has rows for those before as well."""
    offset = config.count("pad_token_id", PADDING) + 1
    if (context_length := values["context_length"] - offset) < 1:
        raise config.error("max_position_embeddings", "leaves no position beyond that of padding", "fix the file")
    return {"context_length": context_length, "offset": offset}


def _write_positions(model: Encoder) -> dict[str, Any]:
    embedding = expect_kind(Embedding, model.embedding, "embedding")
    offset = expect_kind(Learned, embedding.position, "embedding.position").offset
    return {"max_position_embeddings": model.context_length + offset, "pad_token_id": offset - 1}


def _read_windows(config: Config, values: Values) -> Values:
    windows = config.get("attention_window", 512)
    windows = [windows] * values["num_layers"] if isinstance(windows, int) else windows
    if not isinstance(windows, list) or len(windows) != values["num_layers"]:
        raise config.error("attention_window", f"{windows!r} does not give each layer a width", "fix the file")
    for size in windows:
        if not isinstance(size, int) or isinstance(size, bool) or not 2 <= size <= MAX_SIZE or size % 2:
            cause = f"{size!r} is not an even number from 2 to {MAX_SIZE}"
            raise config.error("attention_window", cause, "fix the file")
    return {"windows": tuple(windows)}


def _write_windows(model: Encoder) -> dict[str, Any]:
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    patterns = [expect_kind(GlobalWindow, mixer.pattern, "layers[*].mixer.pattern") for mixer in mixers]
    return {"attention_window": [pattern.size for pattern in patterns]}


# No key says which tokens are global: transformers asks with every text. Here it is the first, as in the paper's
# classification of texts.
KEYS = ConfigTable(longformer, (
    *DESIGN,
    ignored("onnx_export", "ignore_attention_mask"),
    Expected("attention_mode", "longformer", "another attention of the authors' own program"),
    Converted(_read_positions, _write_positions),
    Converted(_read_windows, _write_windows),
), Encoder, PARTS)  # fmt: skip


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    """As BERT's; a head for classes has the pooler within."""
    classes = isinstance(expect_kind(Encoder, model, "kind").head, ClassificationHead)
    return weight_rules(f"""{BODY.replace("bert.", "longformer.")}
        longformer.encoder.layer.{{i}}.attention.self.{{query,key,value}}_global   blocks.{{i}}.mixer.{{q,k,v}}_global
        {"classifier.dense" if classes else "longformer.pooler.dense"}   pooler
        classifier.out_proj                 classifier
        lm_head.{{dense,layer_norm}}        lm_head.{{dense,norm}}
    """) + masked_rules(model, "lm_head.")


FAMILY = Family("longformer", {
    **presets("Beltagy 2020, section 5; allenai/longformer-*-4096 config.json", longformer, {
        "longformer-base": dict(num_layers=12, d_model=768, num_heads=12),
        "longformer-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(longformer, {"longformer-tiny": dict(num_layers=2, num_heads=4, windows=(32,), vocab_size=257)}),
}, Format("longformer", lambda model: architecture("Longformer", model), KEYS, rules, "longformer.",
    (r"(longformer\.)?embeddings\.position_ids", r"(longformer\.)?pooler\..*", r"lm_head\.bias"),
    {"lm_head.decoder.weight": "embedding.token.weight", "lm_head.decoder.bias": "lm_head.bias"},
    marks_global_tokens=True))  # fmt: skip
