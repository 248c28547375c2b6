"""Inference of each layer's position encoding and attention pattern from keys alone."""

from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.spellings import FULL_EVERY, LAYER_KINDS, ROTARY, ROTARY_FRACTION, WINDOW
from archetype.families.config import Config
from archetype.families.rope import FRACTION, SECTIONS, read_rotary, rotary_section
from archetype.parts.pattern.spec import Chunked, Full, Window
from archetype.parts.position.spec import Alibi, NoPosition, Rotary
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition

NOT_ROTARY = ("llama_4_scaling_beta", "max_position_embeddings")  # keys in the rotary section for other purposes
THETA = ("rotary_emb_base", "rope_theta")
USUAL_THETA = 10_000.0
CHUNK = "attention_chunk_size"  # size of chunks within which tokens attend
PREFIX_FULL_EVERY = "prefix_dense_sliding_window_pattern"  # FULL_EVERY of the leading dense layers
WINDOWED = ("sliding_attention", "local", "hybrid_sliding")


def read_latent_rotary(info: CheckpointInfo, layer: int, dim: int, head_dim: int, context_length: int) -> Rotary:
    """Return the rotary positions of latent attention, which rotate all `dim` features of a head's rotary part."""
    config, stated = info.config, rotary_section(info.config)
    kind = _layer_kind(info, layer)
    if stated is not None and kind is not None and isinstance(stated.values.get(kind), dict):  # one section per kind
        stated = stated.section(kind)
    if stated is not None:
        if stated.values.get("rope_type") == "proportional":
            raise stated.error("rope_type", "'proportional' is not supported for latent attention", "use another model")
        # keys for other purposes, and a share that is this part of a head (Mistral 4)
        left_out = {key for key in NOT_ROTARY if key in stated.values}
        share = stated.values.get(FRACTION)
        if info.quirks.share_is_of_head and isinstance(share, float | int) and dim == int(head_dim * share):
            left_out.add(FRACTION)
        replaced = left_out & {FRACTION}  # a share in the section replaces one outside, such as the class's default
        values = {key: value for key, value in config.values.items() if key not in (*SECTIONS, *replaced)}
        section = {key: value for key, value in stated.values.items() if key not in left_out}
        config = Config(values | {"rope_parameters": section}, config.place)
    position = read_rotary(config, dim, context_length)
    info.config.used |= config.used | set(SECTIONS)
    interleaved = info.config.get("rope_interleave")
    return position.replace(interleaved=_interleaved(info) if interleaved is None else bool(interleaved))


def _interleaved(info: CheckpointInfo) -> bool:
    # whether features 2i and 2i + 1 rotate together
    return bool(info.settle("interleaved", (False, True), "no file states which features are rotated together"))


def read_position(info: CheckpointInfo, layer: int, head_dim: int, context_length: int) -> MixerPosition:
    """Return the position encoding of a layer."""
    config = info.config
    rotates = info.quirks.rope or bool(ROTARY & {*config.values, *(info.defaults or ())})
    # `fades`: scores fade with distance (ALiBi)
    fades = bool(config.get("alibi")) or info.quirks.alibi
    if not rotates and not fades:
        kind = info.settle("positions", ("none", "rope", "alibi"), "no key names a position encoding")
        rotates, fades = kind == "rope", kind == "alibi"
    if fades:
        return Alibi(scale=head_dim**-0.5, rounded=True) if info.quirks.alibi_before_scale else Alibi()
    if not rotates or _without_rope(info, layer):
        return NoPosition()
    if info.quirks.rope_when_named and config.get("position_embedding_type") != "rope":
        return NoPosition()
    section = _rotary_section(info, layer)
    if section is None or _theta_is_null(info, section):
        return NoPosition()
    theta = info.positive(THETA, USUAL_THETA)
    if not any(key in values for key in THETA for values in (config.values, section)):
        info.assume("layers[*].mixer.position.theta", USUAL_THETA, "no key names it")
    remaining = {key: value for key, value in config.values.items() if key not in SECTIONS}
    fraction = info.first(ROTARY_FRACTION)
    remaining[FRACTION] = None if _ignores_fraction(info, section) else fraction
    reader = Config(remaining | {"rope_parameters": _of_text(info, section, head_dim, theta)}, config.place)
    position = read_rotary(reader, head_dim, context_length, theta)
    config.used |= reader.used
    dim = info.size(("rotary_dim",))
    dim = position.dim if dim is None else dim
    dim = None if dim == head_dim else dim
    backwards = info.settle("reversed", (False, True), "no file says in which direction they rotate")
    return position.replace(dim=dim, interleaved=_interleaved(info), reversed=backwards)


def _rotary_section(info: CheckpointInfo, layer: int) -> dict[str, Any] | None:
    # None if the layer has no rotary positions
    config, kind = info.config, _layer_kind(info, layer)
    stated = rotary_section(config)
    section = {} if stated is None else dict(stated.values)
    if stated is None:
        info.refuse_derived("rope_parameters")
        info.refuse_derived("rope_theta")
    theta = config.optional_positive("rope_local_base_freq")
    # one section per kind of layer
    if stated is not None and any(isinstance(value, dict) for value in section.values()):
        if kind is None:
            info.refuse_derived(LAYER_KINDS[0])
        if (kind is None or info.quirks.one_rotation) and info.defaults is not None:
            cause = f"has a section for each kind of layers, which the {info.type} class does not read"
            raise config.error("rope_parameters", cause, "move the settings of one section to its top level")
        if section.get(kind or "full_attention", section) is None:  # said to have no rotary positions (Beam)
            return None
        section = dict((stated.section(kind or "full_attention") or Config({})).values)
    elif theta is not None and kind in WINDOWED:
        section = {"rope_theta": theta}  # spelling of older Gemma 3 files
    elif info.quirks.scaled_full_layers and stated is not None and config.get("rope_parameters"):
        cause = f"has no section for each kind of layers, without which the {info.type} class reads nothing of it"
        raise config.error("rope_parameters", cause, "write full_attention and sliding_attention")
    elif info.quirks.scaled_full_layers and stated is not None and "rope_type" not in section:
        raise config.error("rope_scaling", f"has no rope_type, which the {info.type} class requires", "add it")
    elif info.quirks.scaled_full_layers and kind in WINDOWED:
        # OLMo 3: layers with windows keep the class's default theta, unscaled
        section = {"rope_theta": value} if (value := (info.defaults or {}).get("rope_theta")) else {}
    thetas = config.get("layer_rope_theta")
    if isinstance(thetas, list) and layer < len(thetas):  # one per layer; 0 means no rotation
        return section | {"rope_theta": thetas[layer]} if thetas[layer] else None
    return section


def _theta_is_null(info: CheckpointInfo, section: dict[str, Any]) -> bool:
    # OLMo-Hybrid's way to say that nothing rotates; without the key, the default of the class is meant
    outside = info.config.get("rope_theta", 0.0)
    return section.get("rope_theta", outside) is None


def _ignores_fraction(info: CheckpointInfo, section: dict[str, Any]) -> bool:
    # transformers reads the fraction of the type "proportional" outside the class
    reads = info.defaults is None or f"rope_parameters.{FRACTION}" in info.defaults
    return not reads and section.get("rope_type") != "proportional"


def _of_text(info: CheckpointInfo, section: dict[str, Any], head_dim: int, theta: float) -> dict[str, Any]:
    # without the settings for images; a fixed `alpha` is applied to theta (Hunyuan)
    left_out = (*NOT_ROTARY, FRACTION) if _ignores_fraction(info, section) else NOT_ROTARY
    section = {key: value for key, value in section.items() if key not in left_out and not key.startswith("mrope_")}
    if (alpha := section.pop("alpha", None)) is not None:
        theta = float(section.get("rope_theta", theta)) * float(alpha) ** (head_dim / (head_dim - 2))
        section = {"rope_type": "default", "rope_theta": theta}
    return section


def _layer_kind(info: CheckpointInfo, layer: int) -> str | None:
    # the file's name of the layer's kind; None if all layers are of one kind
    kinds, every = info.first(LAYER_KINDS), info.first(FULL_EVERY)
    if not isinstance(kinds, list):
        if isinstance(every, str) and every:  # such as LLLG
            return "sliding_attention" if every[layer % len(every)] == "L" else "full_attention"
        if not isinstance(every, int):
            return None
        every, first = info.config.size(FULL_EVERY[0], every), _dense_prefix(info)
        if layer < first:
            every = info.config.size(PREFIX_FULL_EVERY, 1)
        else:
            layer -= first
        return "sliding_attention" if (layer + 1) % every else "full_attention"
    if layer >= len(kinds):
        raise info.config.error(LAYER_KINDS[0], f"has no kind for layer {layer}", "fix the file")
    return str(kinds[layer])


def _dense_prefix(info: CheckpointInfo) -> int:
    # number of leading dense layers, which have another pattern (Cohere 2)
    if not info.quirks.dense_layers_rotate or not info.config.get("first_k_dense_replace"):
        return 0
    return info.config.size("first_k_dense_replace")


def _rotates_for_it_is_dense(info: CheckpointInfo, layer: int) -> bool:
    # an exception of Cohere 2: dense layers with full attention keep rotary positions
    kinds = info.config.get("mlp_layer_types")
    named = isinstance(kinds, list) and layer < len(kinds) and kinds[layer] == "dense"
    is_dense = named or (not kinds and layer < _dense_prefix(info))
    return info.quirks.dense_layers_rotate and is_dense and info.config.size(PREFIX_FULL_EVERY, 1) == 1


def _without_rope(info: CheckpointInfo, layer: int) -> bool:
    # whether this layer has no rotary positions although others have
    if info.quirks.full_layers_without_rope and _layer_kind(info, layer) == "full_attention":
        return info.config.get("sliding_window") is not None and not _rotates_for_it_is_dense(info, layer)
    with_rope = info.config.get("no_rope_layers")  # flag per layer: 1 means rotary
    if not with_rope and info.config.get("no_rope_layer_interval") is not None:
        return (layer + 1) % info.config.size("no_rope_layer_interval") == 0
    return isinstance(with_rope, list) and layer < len(with_rope) and not with_rope[layer]


def read_pattern(info: CheckpointInfo, layer: int) -> Pattern:
    """Return the attention pattern of a layer."""
    size, kind = info.size(WINDOW) if info.first(WINDOW) else None, _layer_kind(info, layer)
    uses_windows = info.config.flag("use_sliding_window", True)
    if uses_windows and info.first(WINDOW) == 0:  # to transformers, a window without any key
        raise info.config.error(WINDOW[0], "0 positions leave a query without keys", "set it to null, or to a length")
    if info.quirks.half_window:
        both_sides = info.size(("local_attention",))
        size = both_sides // 2 if both_sides is not None and "sliding_window" not in info.stated else size
    if info.config.get(CHUNK) is not None and (
        kind == "chunked_attention" or (kind is None and not _without_rope(info, layer))
    ):
        return Chunked(size=info.config.size(CHUNK))
    if size and kind is None:
        info.refuse_derived(*LAYER_KINDS)
    if kind is not None:
        windowed = kind in WINDOWED
        if windowed and not uses_windows:
            raise info.config.error(LAYER_KINDS[0], "has windows, which other keys switch off", "fix the file")
    else:
        # Qwen2: windows from this layer on, if they are used at all
        first = info.config.count("max_window_layers", 0)
        windowed = uses_windows and layer >= first
    return Window(size=size) if windowed and size else Full()
