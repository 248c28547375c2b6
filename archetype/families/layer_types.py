"""Windows in published configurations: which layers see the whole text and which only their neighbourhood."""

from collections.abc import Callable
from typing import Any

from archetype.families.config import Config
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.spec import Full, Window
from archetype.roles.pattern import Pattern

FULL, SLIDING = "full_attention", "sliding_attention"


def read_patterns(
    config: Config, num_layers: int, window: int | None, default: Callable[[int], str]
) -> tuple[Pattern, ...]:
    """The pattern of each layer, by `layer_types`; where a file has none, by its library's rule for layer i."""
    types = config.get("layer_types")
    types = [default(i) for i in range(num_layers)] if types is None else types
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.error("layer_types", f"does not list {num_layers} layers", "name the type of each layer")
    return tuple(_pattern(config, kind, window) for kind in types)


def write_patterns(decoder: Decoder) -> dict[str, Any]:
    """`layer_types` and the width of the windows; None where there is none."""
    patterns = [block.mixer.pattern for block in decoder.layers if isinstance(block.mixer, Attention)]
    widths = [pattern.size for pattern in patterns if isinstance(pattern, Window)]
    types = [SLIDING if isinstance(pattern, Window) else FULL for pattern in patterns]
    return {"sliding_window": widths[0] if widths else None, "layer_types": types}


def _pattern(config: Config, kind: Any, window: int | None) -> Pattern:
    if kind == FULL:
        return Full()
    if kind != SLIDING:
        raise config.error("layer_types", f"there is no type {kind!r} here", f"known are {FULL}, {SLIDING}")
    if window is None:
        raise config.error("sliding_window", "is null, and layers have windows", "give it a width")
    return Window(size=window)
