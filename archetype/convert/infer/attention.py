"""A layer's attention, by the shapes of its tensors."""

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.linear_mixers import read_linear_mixer
from archetype.convert.infer.quirks import (
    FULL_EVERY,
    HEAD_DIM,
    HEADS,
    LAYER_KINDS,
    ROTARY,
    ROTARY_FRACTION,
    SCORE_SCALE,
    WINDOW,
)
from archetype.convert.infer.tensors import Layer, Names
from archetype.families.config import Config
from archetype.families.deepseek_v2 import latent_scale
from archetype.families.rope import read_rotary
from archetype.parts.attention.spec import Attention, OutputGate, QueryScale
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery
from archetype.parts.norm.spec import NoNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Alibi, NoPosition
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition
from archetype.spec.base import MAX_LENGTH

NOT_ROTARY = ("llama_4_scaling_beta", "max_position_embeddings")  # among rotary positions, and none of them
WINDOWED = ("sliding_attention", "local")
USUAL_HEAD_DIM = 64  # where nothing says how many heads there are


@dataclass(frozen=True)
class ModelDims:
    """The facts of the model that the reading of one layer needs.

    Attributes:
        d_model: width.
        context_length: in tokens.
        transposed: matrices are kept as (inputs, outputs).
    """

    d_model: int
    context_length: int
    transposed: bool


def read_mixer(info: CheckpointInfo, layer: Layer, dims: ModelDims) -> Mixer:
    """The mixer of a layer."""
    if layer.kind != "attention":
        return read_linear_mixer(info, layer, dims.d_model)
    if "kv_down.weight" in layer.mixer:
        return _latent(info, layer, dims)
    return _attention(info, layer, dims)


def _attention(info: CheckpointInfo, layer: Layer, dims: ModelDims) -> Attention:
    names, config = layer.mixer, info.config
    num_heads, head_dim = _num_heads(info, layer, dims), info.size(HEAD_DIM)
    rows = 1 if dims.transposed else 0
    if "qkv.weight" in names:
        head_dim = head_dim or max(dims.d_model // num_heads, 1)
        num_kv_heads = (info.sides(names["qkv.weight"])[rows] // head_dim - num_heads) // 2
    else:
        queries = info.sides(_projection(info, layer, "q"))[rows] // (2 if info.quirks.gate_in_queries else 1)
        head_dim = queries // num_heads
        num_kv_heads = info.sides(_projection(info, layer, "k"))[rows] // max(head_dim, 1)
    if min(head_dim, num_kv_heads) < 1 or num_heads % num_kv_heads:
        raise info.missing(layer.prefix, f"attention with {num_heads} heads and the shapes of its tensors")
    norm, over = _query_norm(info, names, head_dim)
    return Attention(
        num_heads=num_heads,
        num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
        head_dim=None if head_dim * num_heads == dims.d_model else head_dim,
        bias={name: "qkv.bias" in names or f"{name}.bias" in names for name in "qkv"} | {"o": "o.bias" in names},
        scale=_score_scale(info, head_dim),
        softcap=config.optional_positive("attn_logit_softcapping"),
        clip_qkv=config.optional_positive("clip_qkv"),
        qk_norm=norm,
        qk_norm_over=over,
        qk_norm_after_rope=info.quirks.qk_norm_after_rope,
        sinks="sinks" in names,
        gate=_gate(info, names, num_heads),
        query_scale=_query_scale(info),
        position=_position(info, layer.number, head_dim, dims),
        pattern=_pattern(info, layer.number),
    )


def _num_heads(info: CheckpointInfo, layer: Layer, dims: ModelDims) -> int:
    """As a key says; else as many as have the usual width, or the widest below it that tensors allow."""
    if (num_heads := info.size(HEADS)) is not None:
        return num_heads
    rows = 1 if dims.transposed else 0
    widths = [info.sides(layer.mixer[name])[rows] for name in ("q.weight", "k.weight") if name in layer.mixer]
    q_width, common = (widths[0], gcd(*widths)) if widths else (dims.d_model, dims.d_model)
    head_dim = info.size(HEAD_DIM) or next(n for n in range(min(USUAL_HEAD_DIM, common), 0, -1) if common % n == 0)
    num_heads = max(q_width // head_dim, 1)
    reason = f"no key names it, and heads often have {USUAL_HEAD_DIM} features"
    info.assume("layers[*].mixer.num_heads", num_heads, reason)
    return num_heads


def _projection(info: CheckpointInfo, layer: Layer, name: str) -> str:
    """The file's name of a projection that attention must have."""
    if f"{name}.weight" not in layer.mixer:
        raise info.missing(layer.prefix, f"a mixer without {name}")
    return layer.mixer[f"{name}.weight"]


def _query_norm(info: CheckpointInfo, names: Names, head_dim: int) -> tuple[VectorNorm, Literal["head", "all"]]:
    """The norm of queries and keys, and whether of each head or of all together."""
    if info.quirks.qk_norm:
        return info.norm(bias=False, weight=False), "head"
    if "q_norm.weight" not in names:
        return NoNorm(), "head"
    norm = info.norm(bias="q_norm.bias" in names)
    return norm, "head" if info.shapes[names["q_norm.weight"]] == (head_dim,) else "all"


def _query_scale(info: CheckpointInfo) -> QueryScale | None:
    """The growth of queries with their position, which is said among rotary positions."""
    section = info.config.get("rope_parameters") or info.config.get("rope_scaling")
    if not isinstance(section, dict) or not section.get("llama_4_scaling_beta"):
        return None
    reader = Config(section, f"{info.config.place}: rope_parameters")
    length = reader.size("original_max_position_embeddings", None, MAX_LENGTH)
    return QueryScale(beta=reader.positive("llama_4_scaling_beta"), length=length)


def _gate(info: CheckpointInfo, names: Names, num_heads: int) -> OutputGate | None:
    """The gate on attention's result, which may lie beside the queries."""
    if "gate.weight" not in names:
        return OutputGate() if info.quirks.gate_in_queries else None
    per_head = info.shapes[names["gate.weight"]][0] == num_heads
    return OutputGate(per="head" if per_head else "feature", activation=info.quirks.gate_activation)


def _latent(info: CheckpointInfo, layer: Layer, dims: ModelDims) -> LatentAttention:
    names, config = layer.mixer, info.config
    num_heads = _num_heads(info, layer, dims)
    info.size(HEAD_DIM)  # of the rotary part, which the tensors show
    latent_rank = info.sides(_projection(info, layer, "kv_up"))[1]
    rope_dim = info.sides(_projection(info, layer, "kv_down"))[0] - latent_rank
    v_dim = info.sides(_projection(info, layer, "o"))[1] // num_heads
    nope_dim = info.sides(names["kv_up.weight"])[0] // num_heads - v_dim
    if min(rope_dim, v_dim, nope_dim) < 1:
        raise info.missing(layer.prefix, f"latent attention with {num_heads} heads and the shapes of its tensors")
    q_rank = info.sides(names["q_down.weight"])[0] if "q_down.weight" in names else None
    position = read_rotary(config, rope_dim, dims.context_length)
    interleaved = config.get("rope_interleave")
    if interleaved is None:
        interleaved = _interleaved(info)
    return LatentAttention(
        num_heads=num_heads,
        query=DirectQuery() if q_rank is None else LowRankQuery(rank=q_rank),
        kv_lora_rank=latent_rank,
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=v_dim,
        position=position.replace(interleaved=bool(interleaved)),
        bias="o.bias" in names,
        scale=latent_scale(nope_dim + rope_dim, position.scaling),
    )


def _interleaved(info: CheckpointInfo) -> bool:
    """Whether neighbouring features rotate together, which no file says."""
    if not info.quirks.interleaved:
        info.assume("layers[*].mixer.position.interleaved", False, "no file says which features rotate together")
    return info.quirks.interleaved


def _position(info: CheckpointInfo, number: int, head_dim: int, dims: ModelDims) -> MixerPosition:
    config = info.config
    if config.get("alibi") or info.type in ("bloom", "mpt"):
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
    position = read_rotary(reader, head_dim, dims.context_length, theta)
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


def _pattern(info: CheckpointInfo, number: int) -> Pattern:
    size, kind = info.size(WINDOW) if info.first(WINDOW) else None, _layer_kind(info, number)
    if kind is not None:
        windowed = kind in WINDOWED
    else:
        first = info.config.count("max_window_layers", 0)
        windowed = info.config.flag("use_sliding_window", True) and number >= first
    return Window(size=size) if windowed and size else Full()


def _score_scale(info: CheckpointInfo, head_dim: int) -> float | None:
    """The factor of scores, where it is not the usual root."""
    if (width := info.config.optional_positive("query_pre_attn_scalar")) is not None:
        return None if width == head_dim else width**-0.5
    if info.first(SCORE_SCALE) is not None:
        return info.positive(SCORE_SCALE, 1.0)
    return 1.0 if info.quirks.unscaled_scores or info.config.get("scale_attn_weights") is False else None
