"""Longformer (Beltagy 2020): RoBERTa with a window and global tokens; as transformers' `longformer` writes it."""

from typing import Any

from archetype import spec
from archetype.families.bert import architecture, bert, body_rules, read_design, write_design
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import Rule, linear_rules, rule
from archetype.spec.base import MAX_SIZE

GLOBAL = (("query_global", "q_global"), ("key_global", "k_global"), ("value_global", "v_global"))
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
) -> spec.Encoder:
    """An encoder of Longformer's design; the global tokens have projections of their own; `design` is as in `bert`.

    `windows` are the layers' in turn, both sides together.
    """
    return bert(
        vocab_size=vocab_size,
        context_length=context_length,
        num_token_types=num_token_types,
        eps=eps,
        position=spec.Learned(offset=offset),
        patterns=tuple(
            spec.GlobalWindow(size=window, num_global_tokens=num_global_tokens, global_projections=True)
            for window in windows
        ),
        head_activation="gelu",
        **design,
    )


def read(config: Config) -> spec.Encoder:
    """config.json to specification.

    No key says which tokens are global: transformers asks with every text. Here it is the first, as in the paper's
    classification of texts.
    """
    design = read_design(config)
    config.get("onnx_export")
    config.get("ignore_attention_mask")
    config.expect("attention_mode", "longformer", "another attention of the authors' own program")
    offset = config.count("pad_token_id", PADDING) + 1
    if (context_length := design.pop("context_length") - offset) < 1:
        raise config.error("max_position_embeddings", "leaves no position beyond that of padding", "mend the file")
    windows = config.get("attention_window", 512)
    windows = [windows] * design["num_layers"] if isinstance(windows, int) else windows
    if not isinstance(windows, list) or len(windows) != design["num_layers"]:
        raise config.error("attention_window", f"{windows!r} does not give each layer a width", "mend the file")
    for width in windows:
        if not isinstance(width, int) or isinstance(width, bool) or not 2 <= width <= MAX_SIZE or width % 2:
            raise config.error("attention_window", f"{width!r} is not an even number from 2 to {MAX_SIZE}", "mend it")
    return longformer(**design, windows=tuple(windows), context_length=context_length, offset=offset)


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    written = write_design(model)
    encoder = expect_kind(spec.Encoder, model, "kind")
    offset = expect_kind(spec.Learned, encoder.embedding.position, "embedding.position").offset
    mixers = [expect_kind(spec.Attention, block.mixer, "layers[*].mixer") for block in encoder.layers]
    patterns = [expect_kind(spec.GlobalWindow, mixer.pattern, "layers[*].mixer.pattern") for mixer in mixers]
    return written | {
        "attention_window": [pattern.size for pattern in patterns],
        "max_position_embeddings": encoder.context_length + offset,
        "pad_token_id": offset - 1,
    }


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """As BERT's; a head for classes has the pooler within."""
    head = expect_kind(spec.Encoder, model, "kind").head
    classes = isinstance(head, spec.ClassificationHead)
    tied = not isinstance(head, spec.MaskedLanguageModelHead) or head.tied
    return (
        *body_rules("longformer."),
        *linear_rules("longformer.encoder.layer.{i}.attention.self.", "blocks.{i}.mixer.", GLOBAL),
        *linear_rules("", "", [("classifier.dense" if classes else "longformer.pooler.dense", "pooler")]),
        *linear_rules("", "", [("classifier.out_proj", "classifier")]),
        *linear_rules("lm_head.", "lm_head.", [("dense", "dense"), ("layer_norm", "norm")]),
        rule("lm_head.decoder.weight", "lm_head.weight"),
        rule("lm_head.bias" if tied else "lm_head.decoder.bias", "lm_head.bias"),
    )


FAMILY = Family(
    "longformer",
    {
        **presets(
            "Beltagy 2020, section 5; allenai/longformer-*-4096 config.json",
            longformer,
            {
                "longformer-base": dict(num_layers=12, d_model=768, num_heads=12),
                "longformer-large": dict(num_layers=24, d_model=1024, num_heads=16),
            },
        ),
        **tiny(longformer, {"longformer-tiny": dict(num_layers=2, num_heads=4, windows=(32,), vocab_size=257)}),
    },
    Format(
        "longformer",
        lambda model: architecture("Longformer", model),
        read,
        write,
        rules,
        "longformer.",
        (r"(longformer\.)?embeddings\.position_ids", r"(longformer\.)?pooler\..*", r"lm_head\.bias"),
        {"lm_head.decoder.weight": "embedding.token.weight", "lm_head.decoder.bias": "lm_head.bias"},
    ),
)
