"""Decoders of attention or of Mamba in GGUF."""

import math
from collections.abc import Callable

from archetype.convert.gguf.keys import Keys, check_activations, sizes, unsupported
from archetype.families.keys import expect_kind
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.mamba.spec import Mamba
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Window
from archetype.parts.position.spec import LinearScaling, Llama3Scaling, NoScaling, Rotary, RotaryScaling
from archetype.roles.activation import Activation


def decoder_keys(
    own: Callable[[Decoder], Keys], activation: Activation | None, tied: bool = False
) -> Callable[[ModelSpec], Keys]:
    """All keys of a decoder: those that every one has, and its `own`.

    Args:
        own: refuses what llama.cpp does not compute.
        activation: of the feed-forward parts, which no key can change; None where there are none.
        tied: whether there can be no head of its own.
    """

    def keys(model: ModelSpec) -> Keys:
        decoder = expect_kind(Decoder, model, "kind")
        head = expect_kind(LanguageModelHead, decoder.head, "head")
        if decoder.further_tokens is not None:
            raise unsupported("further_tokens", "further tokens here", "leave them out, or keep the run directory")
        if tied and not head.tied:
            raise unsupported("head.tied", "a head of its own here")
        if activation is not None:
            check_activations(decoder.layers, (activation,))
        return {**sizes(decoder, decoder.num_layers), **own(decoder)}

    return keys


def attention(decoder: Decoder) -> Keys:
    """Heads, widths and positions of attention."""
    mixer = expect_kind(Attention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = decoder.final_norm
    heads = mixer.sizes(decoder.d_model)
    kind = "layer_norm_rms_epsilon" if isinstance(norm, RMSNorm) else "layer_norm_epsilon"
    keys: Keys = {
        "attention.head_count": heads.num_heads,
        "attention.head_count_kv": heads.num_kv_heads,
        "attention.key_length": heads.head_dim,
        "attention.value_length": heads.head_dim,
        f"attention.{kind}": getattr(norm, "eps", 1e-5),
        "feed_forward_length": _width(decoder),
    }
    if isinstance(mixer.position, Rotary):
        keys |= {"rope.dimension_count": heads.head_dim, "rope.freq_base": mixer.position.theta}
        keys |= _scaling(mixer.position.scaling)
    return keys


def _width(decoder: Decoder) -> int:
    part = decoder.layers[0].feedforward
    network = part.expert if isinstance(part, MixtureOfExperts) else part
    return network.width(decoder.d_model) if isinstance(network, MLP | GatedMLP) else 0


def _scaling(scaling: RotaryScaling) -> Keys:
    """Llama 3's bands are a tensor instead: see `frequency_factors`."""
    match scaling:
        case NoScaling() | Llama3Scaling():
            return {}
        case LinearScaling():
            return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
        case _:
            raise unsupported("layers[0].mixer.position.scaling", f"{scaling.kind} scaling as transformers computes it")


def frequency_factors(model: ModelSpec) -> list[float] | None:
    """The divisor of each pair's frequency in Llama 3's scaling (Dubey 2024); None without it."""
    mixer = model.layers[0].mixer if isinstance(model, Decoder) else None
    if not isinstance(mixer, Attention) or not isinstance(mixer.position, Rotary):
        return None
    scaling, theta = mixer.position.scaling, mixer.position.theta
    if not isinstance(scaling, Llama3Scaling):
        return None
    assert isinstance(model, Decoder)
    dim = mixer.sizes(model.d_model).rotary_dim
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    factors = []
    for pair in range(dim // 2):
        turns = scaling.original_context_length / (2 * math.pi * theta ** (2 * pair / dim))
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / scaling.factor + share))
    return factors


def llama(decoder: Decoder) -> Keys:
    """llama.cpp has no windows here: the context is as short as the narrowest, where all of a text is seen."""
    keys = attention(decoder)
    mixers = [block.mixer for block in decoder.layers if isinstance(block.mixer, Attention)]
    widths = [mixer.pattern.size for mixer in mixers if isinstance(mixer.pattern, Window)]
    keys["context_length"] = min([decoder.context_length, *widths])
    if isinstance(part := decoder.layers[0].feedforward, MixtureOfExperts):
        keys |= {"expert_count": part.num_experts, "expert_used_count": part.experts_per_token}
    return keys


def qwen2(decoder: Decoder) -> Keys:
    keys = llama(decoder)
    mixer = expect_kind(Attention, decoder.layers[0].mixer, "layers[0].mixer")
    if mixer.sizes(decoder.d_model).head_dim * mixer.num_heads != decoder.d_model:
        raise unsupported("layers[0].mixer.head_dim", "heads that are not d_model / num_heads wide in qwen2")
    return keys


def gemma(decoder: Decoder) -> Keys:
    if expect_kind(Attention, decoder.layers[0].mixer, "layers[0].mixer").bias.o:
        raise unsupported("layers[*].mixer.bias", "a bias behind the heads in gemma")
    return attention(decoder)


def gemma2(decoder: Decoder) -> Keys:
    """Windows in every other layer, the first among them; soft caps; scores scaled by the heads' width."""
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in decoder.layers]
    windows = [isinstance(mixer.pattern, Window) for mixer in mixers]
    if windows != [index % 2 == 0 for index in range(len(mixers))]:
        raise unsupported("layers[*].mixer.pattern", "another order of windows than every other layer in gemma2")
    heads = mixers[0].sizes(decoder.d_model)
    # llama.cpp decides by the number of layers that a model is the one of 27B
    width = decoder.d_model // heads.num_heads if decoder.num_layers == 46 else heads.head_dim
    if mixers[0].scale is not None and not math.isclose(mixers[0].scale, width**-0.5):
        raise unsupported("layers[*].mixer.scale", f"another scale than {width} ** -0.5 in gemma2")
    head = expect_kind(LanguageModelHead, decoder.head, "head")
    if mixers[0].softcap is None or head.softcap is None:
        raise unsupported("layers[*].mixer.softcap", "gemma2 without soft caps")
    assert isinstance(mixers[0].pattern, Window)
    return gemma(decoder) | {
        "attention.sliding_window": mixers[0].pattern.size,
        "attn_logit_softcapping": mixers[0].softcap,
        "final_logit_softcapping": head.softcap,
    }


def unscaled(decoder: Decoder) -> Keys:
    mixer = expect_kind(Attention, decoder.layers[0].mixer, "layers[0].mixer")
    if mixer.scale is not None:
        raise unsupported("layers[*].mixer.scale", "scores that are scaled otherwise than by the heads' width")
    return attention(decoder)


def mamba(decoder: Decoder) -> Keys:
    mixer = expect_kind(Mamba, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(RMSNorm, decoder.final_norm, "final_norm")
    for name, value, needed in (
        ("expand", mixer.expand, 2),
        ("bias", mixer.bias, False),
        ("conv_bias", mixer.conv_bias, True),
    ):
        if value != needed:
            raise unsupported(f"layers[0].mixer.{name}", f"{value!r} here, only {needed!r}")
    return {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": norm.eps,
        "ssm.conv_kernel": mixer.conv_kernel,
        "ssm.inner_size": mixer.expand * decoder.d_model,
        "ssm.state_size": mixer.state_size,
        "ssm.time_step_rank": mixer.rank(decoder.d_model),
    }


OUTER = """
    token_embd                       embedding.token
    position_embd                    embedding.position
    token_embd_norm                  embedding.norm
    output_norm                      final_norm
    output                           lm_head
"""
NORMS = """
    blk.{i}.attn_norm                blocks.{i}.mixer_norm
    blk.{i}.post_attention_norm      blocks.{i}.mixer_post_norm
    blk.{i}.ffn_norm                 blocks.{i}.feedforward_norm
    blk.{i}.post_ffw_norm            blocks.{i}.feedforward_post_norm
"""
ATTENTION = "blk.{i}.attn_{q,k,v,output}      blocks.{i}.mixer.{q,k,v,o}"
NETWORK = "blk.{i}.ffn_{gate,up,down}        blocks.{i}.feedforward.{gate,up,down}"
SPARSE = """
    blk.{i}.ffn_gate_inp             blocks.{i}.feedforward.router
    blk.{i}.ffn_{gate,up,down}_exps.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
"""
APART = weight_rules(f"{OUTER}{NORMS}{ATTENTION}\n{NETWORK}")
EXPERTS = APART + weight_rules(SPARSE)
FUSED = weight_rules(f"""{OUTER}{NORMS}{NETWORK}
    blk.{{i}}.attn_qkv               blocks.{{i}}.mixer.{{q,k,v}}
    blk.{{i}}.attn_output            blocks.{{i}}.mixer.o
""")
STATES = weight_rules(f"""{OUTER}
    blk.{{i}}.attn_norm              blocks.{{i}}.mixer_norm
    blk.{{i}}.ssm_{{a,d}}          = blocks.{{i}}.mixer.{{A_log,D}}
    blk.{{i}}.ssm_conv1d             blocks.{{i}}.mixer.conv
    blk.{{i}}.ssm_{{in,x,dt,out}}    blocks.{{i}}.mixer.{{in,x,dt,out}}_proj
""")
