"""Windows in published configurations: which layers see the whole text and which only their neighbourhood."""

from collections.abc import Callable
from typing import Any

from archetype import spec
from archetype.families.config import Config

FULL, SLIDING = "full_attention", "sliding_attention"


def read_patterns(
    config: Config, num_layers: int, window: int | None, default: Callable[[int], str]
) -> tuple[spec.Pattern, ...]:
    """The pattern of each layer, by `layer_types`; where a file has none, by its library's rule for layer i."""
    types = config.get("layer_types")
    types = [default(i) for i in range(num_layers)] if types is None else types
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.error("layer_types", f"does not list {num_layers} layers", "name the type of each layer")
    return tuple(_pattern(config, kind, window) for kind in types)


def write_patterns(decoder: spec.Decoder) -> dict[str, Any]:
    """`layer_types` and the width of the windows; None where there is none."""
    patterns = [block.mixer.pattern for block in decoder.layers if isinstance(block.mixer, spec.Attention)]
    widths = [pattern.size for pattern in patterns if isinstance(pattern, spec.Window)]
    types = [SLIDING if isinstance(pattern, spec.Window) else FULL for pattern in patterns]
    return {"sliding_window": widths[0] if widths else None, "layer_types": types}


def _pattern(config: Config, kind: Any, window: int | None) -> spec.Pattern:
    if kind == FULL:
        return spec.Full()
    if kind != SLIDING:
        raise config.error("layer_types", f"there is no type {kind!r} here", f"known are {FULL}, {SLIDING}")
    if window is None:
        raise config.error("sliding_window", "is null, and layers have windows", "give it a width")
    return spec.Window(size=window)
