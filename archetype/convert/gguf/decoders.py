"""Decoder-only models in GGUF: keys, checks and tensor names for transformers and Mamba."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from archetype.convert.gguf.keys import Shapes, Shown, check_activations, unsupported
from archetype.convert.gguf.rope import ROTARY
from archetype.families.config import Config
from archetype.families.keys import Converted, Expected, Key, Row, Values, expect_kind, head_sizes, ignored
from archetype.families.llama import llama
from archetype.families.mixtral import mixtral
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention, ProjectionBiases
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.roles.activation import Activation


def decoder_check(
    check_architecture: Callable[[Decoder], None], activation: Activation | None, tied: bool = False
) -> Callable[[ModelSpec], None]:
    """Return a check that refuses everything that llama.cpp supports in no decoder, and everything that `own` refuses.

    Args:
        own: check of a single architecture.
        activation: only activation that the architecture allows in feed-forward layers; None if it has no such layers.
        tied: whether the architecture always ties the head to the embedding.
    """

    def check(model: ModelSpec) -> None:
        decoder = expect_kind(Decoder, model, "kind")
        head = expect_kind(LanguageModelHead, decoder.head, "head")
        if decoder.further_tokens is not None:
            raise unsupported("further_tokens", "multi-token prediction", "remove it, or keep the run directory")
        if tied and not head.tied:
            raise unsupported("head.tied", "an untied head here")
        if activation is not None:
            check_activations(decoder.layers, (activation,))
        check_architecture(decoder)

    return check


def anything(decoder: Decoder) -> None:
    """Accept any decoder."""


def first_attention(model: Any) -> Attention:
    """Return the attention of the first layer."""
    return expect_kind(Attention, model.layers[0].mixer, "layers[0].mixer")


def network_width(model: Any) -> int:
    """Return the hidden width of the first layer's feed-forward network, or of its experts."""
    part = model.layers[0].feedforward
    network = part.expert if isinstance(part, MixtureOfExperts) else part
    return network.width(model.d_model) if isinstance(network, MLP | GatedMLP) else 0


# Keys of every architecture.
SIZES: tuple[Row, ...] = (
    Key("context_length", "context_length"),
    Key("embedding_length", "d_model"),
    Key("block_count", "num_layers"),
    Key("vocab_size", "vocab_size"),
)
# no key says so: a tied file has no output matrix
TIED = Shown(lambda shapes: {"tied": "output.weight" not in shapes})
HEADS: tuple[Row, ...] = (
    Key("attention.head_count", "num_heads"),
    Key("attention.head_count_kv", "num_kv_heads", itemgetter("num_heads")),
    Key("attention.key_length", "head_dim", lambda values: max(1, values["d_model"] // values["num_heads"])),
    Expected("attention.value_length", itemgetter("head_dim"), "values of another width", path=head_sizes("head_dim")),
)
RMS_EPS = Key("attention.layer_norm_rms_epsilon", "eps")
WIDTH = Key("feed_forward_length", "d_ff", path=network_width)
# Architectures that follow Llama.
DESIGN: tuple[Row, ...] = (*SIZES, *HEADS, RMS_EPS, WIDTH, ROTARY, TIED)


def _biases(shapes: Shapes) -> Values:
    present = {name: f"blk.0.attn_{name}.bias" in shapes for name in ("q", "k", "v")}
    # no keys for biases: the first layer's tensors show them
    return {"attention_bias": ProjectionBiases(**present, o="blk.0.attn_output.bias" in shapes)}


BIASES = Shown(_biases)
MLP_BIAS = Shown(lambda shapes: {"mlp_bias": "blk.0.ffn_up.bias" in shapes})


def _read_experts(config: Config, values: Values) -> Values:
    if not (count := config.count("expert_count", 0)):
        # without experts the key is 0 or absent, and has no effect
        config.used.add("expert_used_count")
        return {}
    return {"num_experts": count, "experts_per_token": config.size("expert_used_count")}


def _write_experts(model: Any) -> dict[str, Any]:
    part = model.layers[0].feedforward
    if not isinstance(part, MixtureOfExperts):
        return {}
    return {"expert_count": part.num_experts, "expert_used_count": part.experts_per_token}


EXPERTS = Converted(_read_experts, _write_experts)


QWEN3_MOE: tuple[Row, ...] = (
    *SIZES,
    *HEADS,
    RMS_EPS,
    ROTARY,
    TIED,
    ignored("feed_forward_length", path=network_width),  # of dense layers, which these models do not have
    Key("expert_count", "num_experts"),
    Key("expert_used_count", "experts_per_token"),
    Key("expert_feed_forward_length", "expert_d_ff"),
)


def llama_or_mixtral(num_experts: int = 0, experts_per_token: int = 0, **design: Any) -> Decoder:
    """Build Mixtral if there are experts, otherwise Llama. llama.cpp has one architecture for both."""
    if not num_experts:
        return llama(**design)
    return mixtral(num_experts=num_experts, experts_per_token=experts_per_token, **design)


def without_windows(model: Decoder) -> Decoder:
    """Replace sliding windows with full attention, which llama.cpp computes for these architectures.

    The context is shortened to the narrowest window, within which both mechanisms are equal.
    """
    mixers = [block.mixer for block in model.layers]
    patterns = [mixer.pattern for mixer in mixers if isinstance(mixer, Attention)]
    widths = [pattern.size for pattern in patterns if isinstance(pattern, Window)]
    if not widths:
        return model
    blocks = (block.replace(mixer=block.mixer.replace(pattern=Full())) for block in model.layers)
    return model.replace(layers=tuple(blocks), context_length=min(model.context_length, *widths))


def check_qwen2(decoder: Decoder) -> None:
    """Refuse heads whose widths do not sum to d_model."""
    mixer = first_attention(decoder)
    if mixer.sizes(decoder.d_model).head_dim * mixer.num_heads != decoder.d_model:
        raise unsupported("layers[0].mixer.head_dim", "a head_dim other than d_model / num_heads in qwen2")


# Architectures that follow GPT-2: as many key heads as query heads, and d_model / num_heads wide.
STANDARD: tuple[Row, ...] = (
    *SIZES,
    Key("attention.head_count", "num_heads"),
    Expected("attention.head_count_kv", itemgetter("num_heads"), "shared keys", path=head_sizes("num_kv_heads")),
    *(
        Expected(
            f"attention.{name}_length",
            lambda values: values["d_model"] // values["num_heads"],
            "heads of another width",
            path=head_sizes("head_dim"),
        )
        for name in ("key", "value")
    ),
    Key("attention.layer_norm_epsilon", "eps"),
    WIDTH,
    TIED,
)


def check_scale(decoder: Decoder) -> None:
    """Refuse attention scores with a scale other than the default."""
    if first_attention(decoder).scale is not None:
        raise unsupported("layers[*].mixer.scale", "a scale of scores other than head_dim ** -0.5")


GATED_PARTS: dict[str, Any] = {"final_norm": RMSNorm, "block.mixer": Attention}
STANDARD_PARTS: dict[str, Any] = {"final_norm": LayerNorm, "block.mixer": Attention}

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
NETWORK = "\n    blk.{i}.ffn_{gate,up,down}       blocks.{i}.feedforward.{gate,up,down}"
SPARSE = """
    blk.{i}.ffn_gate_inp             blocks.{i}.feedforward.router
    blk.{i}.ffn_{gate,up,down}_exps.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
"""
APART = weight_rules(f"""{OUTER}{NORMS}{NETWORK}{SPARSE}
    {ATTENTION}
    blk.{{i}}.attn_{{q,k}}_norm      blocks.{{i}}.mixer.{{q,k}}_norm
""")
FUSED = weight_rules(f"""{OUTER}{NORMS}{NETWORK}
    blk.{{i}}.attn_qkv               blocks.{{i}}.mixer.{{q,k,v}}
    blk.{{i}}.attn_output            blocks.{{i}}.mixer.o
""")
