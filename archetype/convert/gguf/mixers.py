"""Mixers other than attention in GGUF: state spaces, delta networks and short convolutions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from archetype.convert.gguf.keys import Has, Keys, Layer, unsupported, written_fields
from archetype.models.decoder.spec import Decoder
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.mamba.spec import Mamba
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm


@dataclass(frozen=True)
class OtherMixer:
    """Mixer other than attention.

    Attributes:
        kind: class of its specification.
        tensor: tensor of a layer that has it.
        read: (layer, epsilon of the norms) -> specification.
        write: (specification, decoder) -> keys.
    """

    kind: type[Mixer]
    tensor: str
    read: Callable[[Layer, float], Mixer]
    write: Callable[[Any, Any], Keys]


MAMBA_SIZES = {"ssm.state_size": "state_size", "ssm.conv_kernel": "conv_kernel"}
MAMBA_2_SIZES = MAMBA_SIZES | {"ssm.time_step_rank": "num_heads", "ssm.group_count": "num_groups"}
EXPANSION = 2  # of Mamba's channels, a constant of llama.cpp


def _read_mamba(layer: Layer, eps: float) -> Mamba:
    keys = layer.keys
    norm: Norm = NoNorm()
    if layer.has("ssm_dt_norm.weight"):
        norm = RMSNorm(eps=eps)
    elif keys.flag("ssm.dt_b_c_rms", False):
        norm = RMSNorm(eps=eps, weight=False)
    rank, d_model, inner = (keys.size(f) for f in ("ssm.time_step_rank", "embedding_length", "ssm.inner_size"))
    if inner != EXPANSION * d_model:
        raise keys.error("ssm.inner_size", f"{inner} is not {EXPANSION} x {d_model}", "fix the file")
    return Mamba(**keys.fields(MAMBA_SIZES), dt_rank=None if rank == -(-d_model // 16) else rank, norm=norm)


def _write_mamba(mixer: Any, decoder: Decoder) -> Keys:
    if mixer.expand != EXPANSION:
        raise unsupported("layers[0].mixer.expand", f"{mixer.expand!r} here, only {EXPANSION}")
    return {
        **written_fields(mixer, MAMBA_SIZES),
        "ssm.inner_size": mixer.expand * decoder.d_model,
        "ssm.time_step_rank": mixer.rank(decoder.d_model),
        **({"ssm.dt_b_c_rms": True} if not mixer.norm.is_absent and not mixer.norm.weight else {}),
    }


def _read_mamba2(layer: Layer, eps: float, **limits: float) -> Mamba2:
    keys = layer.keys
    heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if inner % heads:
        raise keys.error("ssm.inner_size", f"{inner} is not a multiple of {heads} heads", "fix the file")
    return Mamba2(
        **keys.fields(MAMBA_2_SIZES),
        head_dim=inner // heads,
        conv_bias=layer.has("ssm_conv1d.bias"),
        eps=eps,
        norm="after_gate" if layer.has("ssm_norm.weight") else "none",
        **limits,
    )


def _write_mamba2(mixer: Any, decoder: Decoder) -> Keys:
    return written_fields(mixer, MAMBA_2_SIZES) | {"ssm.inner_size": mixer.inner}


def _read_delta(layer: Layer, eps: float) -> GatedDeltaNet:
    keys = layer.keys
    heads, inner, key_heads = (keys.size(f"ssm.{name}") for name in ("time_step_rank", "inner_size", "group_count"))
    width = keys.size("ssm.state_size")
    keys.used |= {"full_attention_interval", "attention.recurrent_layers"}  # which the tensors show
    if inner != heads * width:
        raise keys.error("ssm.inner_size", f"{inner} is not {heads} heads of {width} features", "fix the file")
    return GatedDeltaNet(
        num_heads=heads,
        num_key_heads=None if key_heads == heads else key_heads,
        head_dim=width,
        v_head_dim=width,
        conv_kernel=keys.size("ssm.conv_kernel"),
        eps=eps,
    )


def _write_delta(mixer: Any, decoder: Decoder) -> Keys:
    layers = [isinstance(block.mixer, GatedDeltaNet) for block in decoder.layers]
    period = layers.index(False) + 1 if False in layers else len(layers) + 1
    regular = layers == [(layer + 1) % period != 0 for layer in range(len(layers))]
    return {
        "ssm.conv_kernel": mixer.conv_kernel,
        "ssm.inner_size": mixer.num_heads * mixer.v_head_dim,
        "ssm.state_size": mixer.head_dim,
        "ssm.time_step_rank": mixer.num_heads,
        "ssm.group_count": mixer.key_heads,
        **({"full_attention_interval": period} if regular else {"attention.recurrent_layers": layers}),
    }


def _read_channels(layer: Layer, eps: float, low: str = "decay gate", bounded: Has = "no") -> GatedDeltaNet:
    # Kimi delta attention. `low`: projections of rank head_dim instead of a full matrix
    keys, width = layer.keys, layer.keys.size("kda.head_dim")
    bound = keys.number("kda.gate_lower_bound", -inf) if bounded != "no" else -inf
    if bound >= 0.0 or (bounded == "all" and bound == -inf):
        raise keys.error("kda.gate_lower_bound", f"{bound} is not negative", "fix the file")
    return GatedDeltaNet(
        num_heads=layer.count("attention.head_count"),
        head_dim=width,
        v_head_dim=width,
        conv_kernel=keys.size("ssm.conv_kernel"),
        decay="channel",
        decay_rank=width if "decay" in low else None,
        decay_bound=None if bound == -inf else bound,
        gate="sigmoid",
        gate_rank=width if "gate" in low else None,
        eps=eps,
    )


def _write_channels(mixer: Any, decoder: Decoder, bounded: Has = "no") -> Keys:
    bound = {} if mixer.decay_bound is None or bounded == "no" else {"kda.gate_lower_bound": mixer.decay_bound}
    return {
        "ssm.conv_kernel": mixer.conv_kernel,
        "kda.head_dim": mixer.head_dim,
        "attention.head_count": mixer.num_heads,
        **bound,
    }


def _read_ling(layer: Layer, eps: float) -> GatedDeltaNet:
    layer.keys.expect("kda.safe_gate", True, "unbounded decays")
    layer.keys.used.add("attention.head_count_kv")
    return _read_channels(layer, eps, low="", bounded="all")


def _write_ling(mixer: Any, decoder: Decoder) -> Keys:
    if mixer.decay_bound is None:
        raise unsupported("layers[*].mixer.decay_bound", "unbounded decays here")
    return _write_channels(mixer, decoder, bounded="all") | {"kda.safe_gate": True}


MAMBA = OtherMixer(Mamba, "ssm_x.weight", _read_mamba, _write_mamba)
MAMBA_2 = OtherMixer(Mamba2, "ssm_d", _read_mamba2, _write_mamba2)
# transformers' class limits steps from below, llama.cpp does not; the file is the same
MAMBA_2_LIMITED = replace(MAMBA_2, read=partial(_read_mamba2, dt_limit_min=1e-3))
DELTA_NET = OtherMixer(GatedDeltaNet, "ssm_conv1d.weight", _read_delta, _write_delta)
CHANNEL_DELTA_NET = OtherMixer(GatedDeltaNet, "ssm_conv1d_q.weight", _read_channels, _write_channels)
LING_CHANNELS = replace(CHANNEL_DELTA_NET, read=_read_ling, write=_write_ling)
# GLM-5.3-Flash, and Kimi K3, whose gate is a full matrix
BOUNDED_CHANNELS = replace(
    CHANNEL_DELTA_NET, read=partial(_read_channels, bounded="any"), write=partial(_write_channels, bounded="any")
)
K3_CHANNELS = replace(BOUNDED_CHANNELS, read=partial(_read_channels, low="decay", bounded="any"))
SHORT = OtherMixer(
    ShortConvolution,
    "shortconv.conv.weight",
    lambda layer, eps: ShortConvolution(conv_kernel=layer.keys.size("shortconv.l_cache")),
    lambda mixer, decoder: {"shortconv.l_cache": mixer.conv_kernel},
)
