"""Gemma 1 to 3 in GGUF: fixed patterns of sliding windows, soft caps, and score scales that depend on model size."""

import math
from collections.abc import Callable
from typing import Any

from archetype.convert.gguf.decoders import BIASES, DESIGN, first_attention
from archetype.convert.gguf.keys import unsupported
from archetype.families.config import Config
from archetype.families.gemma3_text import LOCAL
from archetype.families.keys import Converted, Key, Row, Values, expect_kind
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.roles.pattern import Pattern

EVERY = 6  # in Gemma 3 every sixth layer has full attention, the others a sliding window
# Layers of the 27B models, whose scores llama.cpp scales by (d_model / num_heads) ** -0.5.
LARGEST = {"gemma2": 46, "gemma3": 62}
GEMMA: tuple[Row, ...] = (*DESIGN, BIASES)


def check_gemma(decoder: Decoder) -> None:
    """Refuse a bias in the output projection."""
    if first_attention(decoder).bias.o:
        raise unsupported("layers[*].mixer.bias", "a bias of the output projection in gemma")


def _scaling_width(architecture: str, num_layers: int, d_model: int, num_heads: int, head_dim: int) -> int:
    return d_model // num_heads if num_layers == LARGEST[architecture] else head_dim


def _check_scale(decoder: Decoder, architecture: str) -> None:
    mixer = first_attention(decoder)
    heads = mixer.sizes(decoder.d_model)
    width = _scaling_width(architecture, decoder.num_layers, decoder.d_model, heads.num_heads, heads.head_dim)
    if not math.isclose(heads.head_dim**-0.5 if mixer.scale is None else mixer.scale, width**-0.5):
        raise unsupported("layers[*].mixer.scale", f"a scale other than {width} ** -0.5 in {architecture}")


def _windows(decoder: Decoder) -> list[int | None]:
    # one size a layer; None: full attention
    patterns = [expect_kind(Attention, block.mixer, "layers[*].mixer").pattern for block in decoder.layers]
    return [pattern.size if isinstance(pattern, Window) else None for pattern in patterns]


def check_gemma2(decoder: Decoder) -> None:
    """Check the soft caps, the scale of scores, and that windowed and full attention alternate, windowed first."""
    windows = _windows(decoder)
    if [width is not None for width in windows] != [index % 2 == 0 for index in range(len(windows))]:
        raise unsupported("layers[*].mixer.pattern", "windows in other layers than every second in gemma2")
    _check_scale(decoder, "gemma2")
    head = expect_kind(LanguageModelHead, decoder.head, "head")
    if first_attention(decoder).softcap is None or head.softcap is None:
        raise unsupported("layers[*].mixer.softcap", "gemma2 without soft caps")
    check_gemma(decoder)


def check_gemma3(decoder: Decoder) -> None:
    """Check the scale of scores, the positions of windowed layers, and that none or five of six layers are windowed."""
    windows = _windows(decoder)
    ordered = [width is not None for width in windows] == [_is_local(index) for index in range(len(windows))]
    if any(windows) and not ordered:
        raise unsupported("layers[*].mixer.pattern", "windows in other layers than five of six in gemma3")
    positions = [expect_kind(Attention, block.mixer, "layers[*].mixer").position for block in decoder.layers]
    local = [position for position, width in zip(positions, windows, strict=True) if width is not None]
    if any(position != LOCAL for position in local):
        raise unsupported("layers[*].mixer.position", "a theta other than 10,000 in layers with windows in gemma3")
    _check_scale(decoder, "gemma3")
    check_gemma(decoder)


def _is_local(index: int) -> bool:
    return (index + 1) % EVERY != 0


def _query_width(architecture: str) -> Callable[[Config, Values], Values]:
    def read(config: Config, values: Values) -> Values:
        sizes = (values[name] for name in ("num_layers", "d_model", "num_heads", "head_dim"))
        return {"query_width": _scaling_width(architecture, *sizes)}

    return read


def _no_keys(model: Any) -> dict[str, Any]:  # the width follows from the other sizes
    return {}


def _first_window(model: Decoder) -> int | None:
    return next((width for width in _windows(model) if width is not None), None)


# the usual values are those of the published models; a file may leave their keys out
GEMMA2: tuple[Row, ...] = (
    *GEMMA,
    Key("attention.sliding_window", "window", 4096, path=_first_window),
    Key("attn_logit_softcapping", "attention_softcap", 50.0),
    Key("final_logit_softcapping", "softcap", 30.0),
    Converted(_query_width("gemma2"), _no_keys),
)


def _read_layers(config: Config, values: Values) -> Values:
    layers, size = range(values["num_layers"]), config.count("attention.sliding_window", 0)
    every = config.get("attention.sliding_window_pattern", EVERY)
    if isinstance(every, int) and every > 0:  # period of full attention; otherwise one flag per layer
        every = [(index + 1) % every != 0 for index in layers]
    if not isinstance(every, list) or len(every) != len(layers):
        raise config.error(
            "attention.sliding_window_pattern", f"{every!r} does not match the number of layers", "fix the file"
        )
    patterns: tuple[Pattern, ...] = tuple(Window(size=size) if local and size else Full() for local in every)
    # layers with windows have a base of their own
    theta = config.positive("rope.freq_base_swa", LOCAL.theta)
    return {"patterns": patterns, "local_position": Rotary(theta=theta)}


def _write_layers(model: Decoder) -> dict[str, Any]:
    width = _first_window(model)
    return {} if width is None else {"attention.sliding_window": width}


def _global_position(model: Decoder) -> Decoder:
    # the keys of positions describe the layers with full attention, or all layers if all have windows
    full = tuple(block for block, width in zip(model.layers, _windows(model), strict=True) if width is None)
    return model.replace(layers=full or model.layers)


def _written_positions(row: Converted) -> Converted:
    return Converted(row.read, lambda model: row.write(_global_position(model)))


GEMMA3: tuple[Row, ...] = (
    *(_written_positions(row) if isinstance(row, Converted) else row for row in GEMMA),
    Converted(_read_layers, _write_layers),
    Converted(
        lambda config, values: {"softcap": config.optional_positive("final_logit_softcapping")},
        lambda model: {} if model.head.softcap is None else {"final_logit_softcapping": model.head.softcap},
    ),
    Converted(_query_width("gemma3"), _no_keys),
)
