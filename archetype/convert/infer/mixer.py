"""A layer's attention, by the shapes of its tensors."""

from dataclasses import dataclass
from math import gcd
from typing import Any

from archetype import spec
from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.quirks import (
    FULL_EVERY,
    HEAD_DIM,
    HEADS,
    KINDS_OF_LAYERS,
    ROTARY,
    ROTARY_SHARE,
    SCORE_SCALE,
    WINDOW,
)
from archetype.convert.infer.tensors import Layer, Named
from archetype.families.config import Config
from archetype.families.deepseek_v2 import latent_scale
from archetype.families.rope import read_rotary

WINDOWED = ("sliding_attention", "local")
USUAL_HEAD = 64  # features of a head, where nothing says how many there are


@dataclass(frozen=True)
class ModelDims:
    """What a layer must know of the model around it."""

    d_model: int
    context_length: int
    transposed: bool


def read_mixer(clues: CheckpointInfo, layer: Layer, frame: ModelDims) -> spec.Attention | spec.LatentAttention:
    """The mixer of a layer."""
    if "kv_down.weight" in layer.mixer:
        return _latent(clues, layer, frame)
    return _attention(clues, layer, frame)


def _attention(clues: CheckpointInfo, layer: Layer, frame: ModelDims) -> spec.Attention:
    found, config = layer.mixer, clues.config
    num_heads = _heads(clues, layer, frame)
    turn, given = 1 if frame.transposed else 0, clues.size(HEAD_DIM)
    if "qkv.weight" in found:
        head_dim = given or max(frame.d_model // num_heads, 1)
        num_kv_heads = (clues.sides(found["qkv.weight"])[turn] // head_dim - num_heads) // 2
    else:
        head_dim = clues.sides(_there(clues, layer, "q"))[turn] // num_heads
        num_kv_heads = clues.sides(_there(clues, layer, "k"))[turn] // max(head_dim, 1)
    if min(head_dim, num_kv_heads) < 1 or num_heads % num_kv_heads:
        raise clues.missing(layer.prefix, f"attention with {num_heads} heads and the shapes of its tensors")
    norm, over = _query_norm(clues, found, head_dim)
    return spec.Attention(
        num_heads=num_heads,
        num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
        head_dim=None if head_dim * num_heads == frame.d_model else head_dim,
        bias={name: "qkv.bias" in found or f"{name}.bias" in found for name in "qkv"} | {"o": "o.bias" in found},
        scale=_score_scale(clues, head_dim),
        softcap=config.optional_positive("attn_logit_softcapping"),
        clip_qkv=config.optional_positive("clip_qkv"),
        qk_norm=norm,
        qk_norm_over=over,
        position=_position(clues, layer.number, head_dim, frame),
        pattern=_pattern(clues, layer.number),
    )


def _heads(clues: CheckpointInfo, layer: Layer, frame: ModelDims) -> int:
    """As a key says; else as many as have the usual width, or the widest below it that tensors allow."""
    if (given := clues.size(HEADS)) is not None:
        return given
    turn = 1 if frame.transposed else 0
    rows = [clues.sides(layer.mixer[name])[turn] for name in ("q.weight", "k.weight") if name in layer.mixer]
    queries, common = (rows[0], gcd(*rows)) if rows else (frame.d_model, frame.d_model)
    width = clues.size(HEAD_DIM) or next(n for n in range(min(USUAL_HEAD, common), 0, -1) if common % n == 0)
    made = max(queries // width, 1)
    clues.assume("layers[*].mixer.num_heads", made, f"no key names it, and heads often have {USUAL_HEAD} features")
    return made


def _there(clues: CheckpointInfo, layer: Layer, name: str) -> str:
    """The file's name of a projection that attention must have."""
    if f"{name}.weight" not in layer.mixer:
        raise clues.missing(layer.prefix, f"a mixer without {name}")
    return layer.mixer[f"{name}.weight"]


def _query_norm(clues: CheckpointInfo, found: Named, head_dim: int) -> tuple[Any, str]:
    """The norm of queries and keys, and whether of each head or of all together."""
    if clues.habit.qk_norm:
        return clues.norm(bias=False, weight=False), "head"
    if "q_norm.weight" not in found:
        return spec.NoNorm(), "head"
    norm = clues.norm(bias="q_norm.bias" in found)
    return norm, "head" if clues.shapes[found["q_norm.weight"]] == (head_dim,) else "all"


def _latent(clues: CheckpointInfo, layer: Layer, frame: ModelDims) -> spec.LatentAttention:
    found, config = layer.mixer, clues.config
    num_heads = _heads(clues, layer, frame)
    clues.size(HEAD_DIM)  # the turned part, which the tensors show
    latent = clues.sides(_there(clues, layer, "kv_up"))[1]
    turned = clues.sides(_there(clues, layer, "kv_down"))[0] - latent
    value = clues.sides(_there(clues, layer, "o"))[1] // num_heads
    plain = clues.sides(found["kv_up.weight"])[0] // num_heads - value
    rank = clues.sides(found["q_down.weight"])[0] if "q_down.weight" in found else None
    if min(turned, value, plain) < 1:
        raise clues.missing(layer.prefix, f"latent attention with {num_heads} heads and the shapes of its tensors")
    position = read_rotary(config, turned, frame.context_length)
    interleaved = config.get("rope_interleave")
    if interleaved is None and not clues.habit.interleaved:
        clues.assume("layers[*].mixer.position.interleaved", False, "no file says which features turn together")
    return spec.LatentAttention(
        num_heads=num_heads,
        query=spec.DirectQuery() if rank is None else spec.LowRankQuery(rank=rank),
        kv_lora_rank=latent,
        qk_nope_head_dim=plain,
        qk_rope_head_dim=turned,
        v_head_dim=value,
        position=position.replace(interleaved=clues.habit.interleaved if interleaved is None else bool(interleaved)),
        bias="o.bias" in found,
        scale=latent_scale(plain + turned, position.scaling),
    )


def _position(clues: CheckpointInfo, number: int, head_dim: int, frame: ModelDims) -> spec.MixerPosition:
    config = clues.config
    if config.get("alibi") or clues.type in ("bloom", "mpt"):
        return spec.Alibi()
    turned = clues.habit.turned or ROTARY & set(config.values)
    if not turned or _unplaced(clues, number):
        return spec.NoPosition()
    values = dict(config.values)
    section = values.get("rope_parameters")
    if isinstance(section, dict) and any(isinstance(value, dict) for value in section.values()):
        values["rope_parameters"] = section.get(_kind(clues, number) or "full_attention")
    if (local := config.optional_positive("rope_local_base_freq")) and _kind(clues, number) in WINDOWED:
        values |= {"rope_theta": local, "rope_scaling": None}  # as older files of Gemma 3 say it
    reader = Config(values, config.place)
    theta = clues.positive(("rotary_emb_base", "rope_theta"), 10_000.0)
    position = read_rotary(reader, head_dim, frame.context_length, theta)
    config.used |= reader.used
    dim = clues.size(("rotary_dim",))
    if clues.first(ROTARY_SHARE) is not None and dim is None:
        dim = int(head_dim * clues.positive(ROTARY_SHARE, 1.0))
    dim = position.dim if dim is None else dim
    if not clues.habit.interleaved:
        clues.assume("layers[*].mixer.position.interleaved", False, "no file says which features turn together")
    dim = None if dim == head_dim else dim
    return position.replace(dim=dim, interleaved=clues.habit.interleaved, reversed=clues.habit.reversed)


def _kind(clues: CheckpointInfo, number: int) -> str | None:
    """What the file calls a layer, where it calls them by kinds."""
    kinds, every = clues.first(KINDS_OF_LAYERS), clues.first(FULL_EVERY)
    if not isinstance(kinds, list):
        if isinstance(every, str) and every:  # such as LLLG
            return "sliding_attention" if every[number % len(every)] == "L" else "full_attention"
        if not isinstance(every, int):
            return None
        return "sliding_attention" if (number + 1) % clues.config.size(FULL_EVERY[0], every) else "full_attention"
    if number >= len(kinds):
        raise clues.config.error(KINDS_OF_LAYERS[0], f"has no kind for layer {number}", "fix the file")
    return str(kinds[number])


def _unplaced(clues: CheckpointInfo, number: int) -> bool:
    """Whether a layer has no positions although others have."""
    if clues.habit.in_full_unplaced and _kind(clues, number) == "full_attention":
        return clues.config.get("sliding_window") is not None
    turned = clues.config.get("no_rope_layers")
    return isinstance(turned, list) and number < len(turned) and not turned[number]


def _pattern(clues: CheckpointInfo, number: int) -> spec.Pattern:
    width, kind = clues.size(WINDOW) if clues.first(WINDOW) else None, _kind(clues, number)
    if kind is not None:
        windowed = kind in WINDOWED
    else:
        first = clues.config.count("max_window_layers", 0)
        windowed = clues.config.flag("use_sliding_window", True) and number >= first
    return spec.Window(size=width) if windowed and width else spec.Full()


def _score_scale(clues: CheckpointInfo, head_dim: int) -> float | None:
    """What scores are multiplied by, where it is not the usual root."""
    if (width := clues.config.optional_positive("query_pre_attn_scalar")) is not None:
        return None if width == head_dim else width**-0.5
    if clues.first(SCORE_SCALE) is not None:
        return clues.positive(SCORE_SCALE, 1.0)
    return 1.0 if clues.habit.unscaled or clues.config.get("scale_attn_weights") is False else None
