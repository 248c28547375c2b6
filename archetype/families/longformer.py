"""Longformer (Beltagy 2020): RoBERTa with a window and global tokens. Format: transformers' `longformer`."""

from dataclasses import replace
from typing import Any

from archetype.families.bert import BODY_KEYS, HeadRow
from archetype.families.config import Config
from archetype.families.encoder_format import BODY, ROBERTA_NAMES, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Expected, Row, Values, expect_kind, ignored
from archetype.families.roberta import POSITIONS, roberta
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.spec import GlobalWindow
from archetype.spec.base import MAX_SIZE


def longformer(
    *,
    windows: tuple[int, ...] = (512,),
    **design: Any,
) -> Encoder:
    """Build a Longformer encoder with separate projections for global tokens. `design` takes the arguments of `bert`.

    `windows` are cycled over the layers and span both sides.
    """
    defaults = {"vocab_size": 50_265, "context_length": 4096, "eps": 1e-5, "num_token_types": 1}
    patterns = (GlobalWindow(size=window, num_global_tokens=1, global_projections=True) for window in windows)
    return roberta(patterns=tuple(patterns), **defaults | design)


def _read_windows(config: Config, values: Values) -> Values:
    windows = config.get("attention_window", 512)
    windows = [windows] * values["num_layers"] if isinstance(windows, int) else windows
    if not isinstance(windows, list) or len(windows) != values["num_layers"]:
        raise config.error("attention_window", f"{windows!r} does not list one size per layer", "fix the file")
    for size in windows:
        if not isinstance(size, int) or isinstance(size, bool) or not 2 <= size <= MAX_SIZE or size % 2:
            cause = f"{size!r} is not an even number from 2 to {MAX_SIZE}"
            raise config.error("attention_window", cause, "fix the file")
    return {"windows": tuple(windows)}


def _write_windows(model: Encoder) -> dict[str, Any]:
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    patterns = [expect_kind(GlobalWindow, mixer.pattern, "layers[*].mixer.pattern") for mixer in mixers]
    return {"attention_window": [pattern.size for pattern in patterns]}


# No key names the global tokens, which transformers takes as an input. Here it is the first token, as for text
# classification in the paper.
KEYS: tuple[Row, ...] = (
    *BODY_KEYS,
    HeadRow(spans=False),  # for spans, all tokens of the question are global
    ignored("onnx_export", "ignore_attention_mask"),
    Expected("attention_mode", "longformer", "another attention of the authors' program"),
    POSITIONS,
    Converted(_read_windows, _write_windows),
)


BODY_WITH_GLOBAL = (
    BODY
    + """
    BASE.encoder.layer.{i}.attention.self.{query,key,value}_global   blocks.{i}.mixer.{q,k,v}_global
"""
)
FAMILY = Family("longformer", {
    **presets("Beltagy 2020, section 5; allenai/longformer-*-4096 config.json", longformer, {
        "longformer-base": dict(num_layers=12, d_model=768, num_heads=12),
        "longformer-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(longformer, {"longformer-tiny": dict(num_layers=2, num_heads=4, windows=(32,), vocab_size=257)}),
}, encoder_format("longformer", "Longformer", "longformer", longformer, KEYS,
    replace(ROBERTA_NAMES, body=BODY_WITH_GLOBAL), marks_global_tokens=True))
