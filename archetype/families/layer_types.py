"""Sliding windows in published configurations: attention pattern and positions of each layer."""

from collections.abc import Callable
from typing import Any

from archetype.families.config import Config
from archetype.families.keys import expect_kind
from archetype.families.rope import read_rotary, write_rotary
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.roles.pattern import Pattern

FULL, SLIDING = "full_attention", "sliding_attention"


def read_patterns(
    config: Config, num_layers: int, window: int | None, default: Callable[[int], str]
) -> tuple[Pattern, ...]:
    """Return the pattern of each layer given by `layer_types`; without this key, by the default type of layer i."""
    types = config.get("layer_types")
    types = [default(i) for i in range(num_layers)] if types is None else types
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.error("layer_types", f"does not list {num_layers} layers", "list the type of each layer")
    return tuple(_pattern(config, kind, window) for kind in types)


def write_patterns(model: Decoder | Encoder) -> dict[str, Any]:
    patterns = [block.mixer.pattern for block in model.layers if isinstance(block.mixer, Attention)]
    widths = [pattern.size for pattern in patterns if isinstance(pattern, Window)]
    types = [SLIDING if isinstance(pattern, Window) else FULL for pattern in patterns]
    # one key for all windows; `Format` refuses models whose windows differ
    return {"sliding_window": widths[0] if widths else None, "layer_types": types}


def read_positions(
    config: Config, head_dim: int, context_length: int, thetas: dict[str, float], scaled: tuple[str, ...]
) -> dict[str, Rotary]:
    """Return the positions for each layer type, in the spelling of transformers 4 or 5.

    Args:
        config: configuration with `rope_parameters` by type, or with `rope_scaling` in older files.
        head_dim: width of a head, which is rotated completely.
        thetas: default theta for each type.
        scaled: types to which `rope_scaling` applies.
    """
    sections = config.get("rope_parameters") or {}
    if not isinstance(sections, dict) or not sections.keys() <= {FULL, SLIDING}:
        raise config.error("rope_parameters", "has sections other than layer types", f"use {FULL} and {SLIDING}")
    scaling, positions = config.get("rope_scaling"), {}
    if isinstance(scaling, dict) and "rope_type" not in scaling:
        raise config.error("rope_scaling", "has no rope_type, without which the class scales nothing", "add it")
    for kind, theta in thetas.items():
        values = {"rope_parameters": sections.get(kind), "rope_scaling": scaling if kind in scaled else None}
        positions[kind] = read_rotary(Config(values, config.place), head_dim, context_length, theta)
        if positions[kind].dim is not None:
            raise config.error("partial_rotary_factor", "this format rotates whole heads", "remove it")
    return positions


def write_positions(model: Decoder | Encoder) -> dict[str, Any]:
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    windows, sections = write_patterns(model), {}
    for mixer, kind in zip(mixers, windows["layer_types"], strict=True):
        position = expect_kind(Rotary, mixer.position, "layers[*].mixer.position")
        sections[kind] = write_rotary(position, mixer.sizes(model.d_model).head_dim)
    return windows | {"rope_parameters": sections}


def _pattern(config: Config, kind: Any, window: int | None) -> Pattern:
    if kind == FULL:
        return Full()
    if kind != SLIDING:
        raise config.error("layer_types", f"unknown layer type {kind!r}", f"use {FULL} or {SLIDING}")
    if window is None:
        raise config.error("sliding_window", "is null, but some layers have windows", "add a size")
    return Window(size=window)
