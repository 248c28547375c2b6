"""How attention in a layer knows positions, and which of them it sees: by keys, for no tensor shows it."""

from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.quirks import FULL_EVERY, LAYER_KINDS, ROTARY, ROTARY_FRACTION, WINDOW
from archetype.families.config import Config
from archetype.families.rope import read_rotary
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Alibi, NoPosition, Rotary
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition

NOT_ROTARY = ("llama_4_scaling_beta", "max_position_embeddings")  # among rotary positions, and none of them
WINDOWED = ("sliding_attention", "local")


def read_latent_rotary(info: CheckpointInfo, dim: int, context_length: int) -> Rotary:
    """The positions of latent attention, whose `dim` rotated features all turn."""
    position = read_rotary(info.config, dim, context_length)
    interleaved = info.config.get("rope_interleave")
    return position.replace(interleaved=_interleaved(info) if interleaved is None else bool(interleaved))


def _interleaved(info: CheckpointInfo) -> bool:
    """Whether neighbouring features rotate together, which no file says."""
    if not info.quirks.interleaved:
        info.assume("layers[*].mixer.position.interleaved", False, "no file says which features rotate together")
    return info.quirks.interleaved


def read_position(info: CheckpointInfo, number: int, head_dim: int, context_length: int) -> MixerPosition:
    """The positions of a layer whose heads have so many features."""
    config = info.config
    if config.get("alibi") or info.quirks.alibi:
        return Alibi()
    if not (info.quirks.rope or ROTARY & set(config.values)) or _without_rope(info, number):
        return NoPosition()
    if info.quirks.rope_when_named and config.get("position_embedding_type") != "rope":
        return NoPosition()
    values = dict(config.values)
    thetas = config.get("layer_rope_theta")
    if isinstance(thetas, list) and number < len(thetas):  # of each layer its own; zero for none
        if not thetas[number]:
            return NoPosition()
        values["rope_parameters"] = (values.get("rope_parameters") or {}) | {"rope_theta": thetas[number]}
    section = values.get("rope_parameters")
    if isinstance(section, dict) and any(isinstance(value, dict) for value in section.values()):
        values["rope_parameters"] = section.get(_layer_kind(info, number) or "full_attention")
    if (theta := config.optional_positive("rope_local_base_freq")) and _layer_kind(info, number) in WINDOWED:
        values |= {"rope_theta": theta, "rope_scaling": None}  # as older files of Gemma 3 say it
    if isinstance(section := values.get("rope_parameters") or values.get("rope_scaling"), dict):
        values |= _of_text(section, head_dim, info.positive(("rope_theta",), 10_000.0))
    reader = Config(values, config.place)
    theta = info.positive(("rotary_emb_base", "rope_theta"), 10_000.0)
    position = read_rotary(reader, head_dim, context_length, theta)
    config.used |= reader.used
    dim = info.size(("rotary_dim",))
    if info.first(ROTARY_FRACTION) is not None and dim is None:
        dim = int(head_dim * info.positive(ROTARY_FRACTION, 1.0))
    dim = position.dim if dim is None else dim
    dim = None if dim == head_dim else dim
    return position.replace(dim=dim, interleaved=_interleaved(info), reversed=info.quirks.reversed)


def _of_text(section: dict[str, Any], head_dim: int, theta: float) -> dict[str, Any]:
    """Rotary positions without what only pictures need; a fixed `alpha` stretches theta (Hunyuan)."""
    section = {key: value for key, value in section.items() if key not in NOT_ROTARY and not key.startswith("mrope_")}
    if (alpha := section.pop("alpha", None)) is not None:
        theta = float(section.get("rope_theta", theta)) * float(alpha) ** (head_dim / (head_dim - 2))
        section = {"rope_type": "default", "rope_theta": theta}
    return {"rope_parameters": section}


def _layer_kind(info: CheckpointInfo, number: int) -> str | None:
    """The file's name of a layer's kind; None where it has no kinds."""
    kinds, every = info.first(LAYER_KINDS), info.first(FULL_EVERY)
    if not isinstance(kinds, list):
        if isinstance(every, str) and every:  # such as LLLG
            return "sliding_attention" if every[number % len(every)] == "L" else "full_attention"
        if not isinstance(every, int):
            return None
        return "sliding_attention" if (number + 1) % info.config.size(FULL_EVERY[0], every) else "full_attention"
    if number >= len(kinds):
        raise info.config.error(LAYER_KINDS[0], f"has no kind for layer {number}", "fix the file")
    return str(kinds[number])


def _without_rope(info: CheckpointInfo, number: int) -> bool:
    """Whether a layer has no positions although others have."""
    if info.quirks.full_layers_without_rope and _layer_kind(info, number) == "full_attention":
        return info.config.get("sliding_window") is not None
    with_rope = info.config.get("no_rope_layers")  # 1 for each layer that has them
    return isinstance(with_rope, list) and number < len(with_rope) and not with_rope[number]


def read_pattern(info: CheckpointInfo, number: int) -> Pattern:
    """Which pairs of positions a layer sees."""
    size, kind = info.size(WINDOW) if info.first(WINDOW) else None, _layer_kind(info, number)
    if kind is not None:
        windowed = kind in WINDOWED
    else:
        first = info.config.count("max_window_layers", 0)
        windowed = info.config.flag("use_sliding_window", True) and number >= first
    return Window(size=size) if windowed and size else Full()
