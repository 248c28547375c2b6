"""Designs and formats of flash-linear-attention (fla): recurrences, and the transformer that they are compared with."""

from collections.abc import Mapping
from functools import partial
from itertools import accumulate, pairwise
from math import isclose
from operator import itemgetter
from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Row, Values, ignored
from archetype.families.linear_attention import EPS, linear_decoder
from archetype.families.rules import Rule, rule, weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention, ProjectionBiases
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.linear_attention.spec import ChannelDecay, FixedDecay, LinearAttention
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.roles.mixer import Mixer


def build(kind: type[Mixer], *, eps: float = EPS, **arguments: Any) -> Decoder:
    """Build a decoder whose layers have mixers of a kind. `arguments` has fields of both."""
    fields = {name: arguments.pop(name) for name in kind.model_fields if name in arguments}
    norms = {"eps": eps, "norm": RMSNorm(eps=eps)}
    norm = {name: value for name, value in norms.items() if name in kind.model_fields}
    return linear_decoder(mixer=kind(**norm | fields), eps=eps, **arguments)


def _sizes(model: Any) -> tuple[int, int, int]:
    mixer = model.layers[0].mixer
    size = mixer.head_dim or model.d_model // mixer.num_heads
    return mixer.num_heads, size, mixer.v_head_dim or size


def _integral(size: float) -> float:
    return round(size) if isclose(round(size), size) else size  # a specification refuses other numbers


def _expanded(name: str, field: str, default: float) -> Key:
    # a factor on the width of the model, of which heads have equal parts
    return Key(name, field, default, check=Config.positive,
        decode=lambda factor, values: _integral(values["d_model"] * factor / values["num_heads"]),
        path=lambda model: _sizes(model)[1 + (field == "v_head_dim")] * _sizes(model)[0] / model.d_model)


def _gated(name: str, default: bool) -> Converted:
    def read(config: Config, values: Values) -> Values:
        return {"gate": values.get("gate", "silu") if config.flag(name, default) else "none"}

    return Converted(read, lambda model: {name: model.layers[0].mixer.gate != "none"})


def network_width(ratio: float, divisor: float, multiple: int, path: str | None = None) -> tuple[Row, ...]:
    """Return the rows for the inner width: intermediate_size, or hidden_ratio times the width over a divisor."""
    def rounded(config: Config, values: Values) -> Values:
        factor = 4.0 if config.get("hidden_ratio", ratio) is None else config.positive("hidden_ratio", ratio)
        return {"d_ff": -(-int(values["d_model"] * factor / divisor) // multiple) * multiple}

    return (
        Converted(rounded, lambda model: {}),
        Key("intermediate_size", "d_ff", itemgetter("d_ff"), path=path),
    )


def of_model() -> tuple[Row, ...]:
    """Return the rows that all models of fla have; those ignored are of kernels and of the loss."""
    return (
        Expected("attn", None, "layers of attention"),
        ignored("attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"),
        Key("hidden_size", "d_model", 2048),
        Key("num_hidden_layers", "num_layers", 24),
        Key("vocab_size", "vocab_size", 32_000),
        Key("max_position_embeddings", "context_length", 2048),
        Key("tie_word_embeddings", "tied", False),
        Key("initializer_range", "std", 0.02),
    )


def _table(kind: type[Mixer], fixed: Values, *rows: Row, ratio: float = 4.0) -> ConfigTable:
    return ConfigTable(partial(build, kind, **fixed), (
        *of_model(),
        Key("norm_eps", "eps", EPS),
        ignored("fuse_norm", "fuse_swiglu"),
        Expected("hidden_act", "swish", "another activation", path=lambda model: "swish"),
        Expected("attnres_block_size", None, "attention over depth"),
        *network_width(ratio, 1.5, 256),
        *rows,
    ), parts={"block.mixer": kind, "block.feedforward": GatedMLP, "final_norm": RMSNorm})


def _of_linear(heads: int, keys: float, values: float) -> tuple[Row, ...]:
    return (
        Key("num_heads", "num_heads", heads),
        Expected("num_kv_heads", None, "heads that share keys"),
        _expanded("expand_k", "head_dim", keys),
        _expanded("expand_v", "v_head_dim", values),
        Expected("feature_map", None, "a map of queries and keys"),
        _gated("use_output_gate", True),
        Key("elementwise_affine", "norm", True, null=False, check=Config.flag, encode=lambda norm: norm.weight,
            decode=lambda weight, values: RMSNorm(eps=values["eps"], weight=weight)),
    )


def _convolved(config: Config, values: Values) -> Values:
    used = config.flag("use_short_conv", False)
    return dict.fromkeys(("feature_map", "value_activation"), "silu") if used else {"conv_kernel": None}


GLA = _table(LinearAttention, {"decay": ChannelDecay(rank=16)},
    Expected("clamp_min", None, "bounds on decays"),
    Expected("use_gk", True, "no decays"),
    Expected("use_gv", False, "decays of values"),
    *_of_linear(4, 0.5, 1.0),
    Key("conv_size", "conv_kernel", 4, encode=lambda kernel: kernel or 4),
    Converted(_convolved, lambda model: {"use_short_conv": model.layers[0].mixer.conv_kernel is not None}),
)
RETNET = _table(LinearAttention, {"decay": FixedDecay(), "position": Rotary()},
    ignored("use_short_conv", "conv_size"),  # fla's class reads neither
    *_of_linear(8, 1.0, 2.0),
    ratio=2.0,
)
CONVOLUTION = (
    Expected("use_short_conv", True, "no convolution", path=lambda model: True),
    Key("conv_size", "conv_kernel", 4),
    Key("allow_neg_eigval", "negative_eigenvalues", False, check=Config.flag),
)
DELTA_NET = _table(GatedDeltaNet, {"decay": "none"},
    ignored("use_output_norm"),  # fla's class does not read it
    Expected("use_beta", True, "writing at a rate of 1"),
    Expected("qk_norm", "l2", "queries and keys whose sum is 1"),
    Expected("qk_activation", "silu", "another activation of queries and keys"),
    Key("num_heads", "num_heads", 16),
    _expanded("expand_k", "head_dim", 1.0),
    _expanded("expand_v", "v_head_dim", 1.0),
    _gated("use_gate", False),
    *CONVOLUTION,
)


def _of_values(heads: int, size: int, factor: float) -> tuple[Row, ...]:
    return (
        Key("num_heads", "num_key_heads", heads, path="block.mixer.key_heads"),
        Key("num_v_heads", "num_heads", itemgetter("num_key_heads")),
        Key("head_dim", "head_dim", size, path="block.mixer.head_dim"),
        Key("expand_v", "v_head_dim", factor, check=Config.positive,
            decode=lambda factor, values: _integral(values["head_dim"] * factor),
            path=lambda model: _sizes(model)[2] / _sizes(model)[1]),
        *CONVOLUTION,
    )


GATED_DELTANET = _table(GatedDeltaNet, {},
    *_of_values(6, 256, 2.0),
    Key("output_gate_activation", "gate", "swish", check=Config.activation,
        decode=lambda activation, values: activation.kind,
        encode=lambda gate: "sigmoid" if gate == "sigmoid" else "swish"),
    _gated("use_gate", True),
)
KDA = _table(GatedDeltaNet, {"decay": "channel", "gate": "sigmoid", "gate_bias": True},
    ignored("safe_gate"),  # of kernels
    *_of_values(16, 128, 1.0),
    Converted(lambda config, values: {"decay_rank": values["v_head_dim"], "gate_rank": values["v_head_dim"]},
        lambda model: {}),
    Key("lower_bound", "decay_bound",
        check=lambda config, name, default: None if config.get(name) is None else config.number(name)),
)

TRANSFORMER = _table(Attention, {},
    ignored("elementwise_affine"),  # fla's class does not read it
    Key("num_heads", "num_heads", 32, path="block.mixer.num_heads"),
    Key("num_kv_heads", "num_kv_heads", itemgetter("num_heads"), null=itemgetter("num_heads"),
        path="block.mixer.num_kv_heads"),
    Key("qkv_bias", "bias", False, null=False, check=Config.flag, encode=lambda bias: bias.q,
        decode=lambda used, values: ProjectionBiases(q=used, k=used, v=used)),
    Key("qk_norm", "qk_norm", False, null=False, check=Config.flag, encode=lambda norm: not norm.is_absent,
        decode=lambda used, values: RMSNorm(eps=1e-5) if used else NoNorm()),
    Key("window_size", "pattern", check=Config.optional_size, encode=lambda pattern: getattr(pattern, "size", None),
        decode=lambda size, values: Full() if size is None else Window(size=size)),
    Key("rope_theta", "position", 10_000.0, check=Config.positive, path="block.mixer.position.theta",
        decode=lambda theta, values: Rotary(theta=theta)),
)

RULES = weight_rules("""
    model.embeddings                            embedding.token
    model.layers.{i}.attn_norm                  blocks.{i}.mixer_norm
    model.layers.{i}.mlp_norm                   blocks.{i}.feedforward_norm
    model.layers.{i}.mlp.{gate,up,down}_proj    blocks.{i}.feedforward.{gate,up,down}
    model.layers.{i}.attn.{q,k,v,o}_proj        blocks.{i}.mixer.{q,k,v,o}
    model.layers.{i}.attn.{q,k}_norm            blocks.{i}.mixer.{q,k}_norm
    model.norm                                  final_norm
    lm_head                                     lm_head
    model.layers.{i}.attn.{a,b,g}_proj          blocks.{i}.mixer.{a,b,gate}
    model.layers.{i}.attn.{A_log,dt_bias}     = blocks.{i}.mixer.{A_log,dt_bias}
""")


def _rules(model: Any) -> tuple[Rule, ...]:
    mixer, (heads, key_size, value_size) = model.layers[0].mixer, _sizes(model)
    keys = getattr(mixer, "key_heads", heads) * key_size
    rows = pairwise(accumulate((keys, keys, heads * value_size), initial=0))  # of one convolution
    convolutions = (
        rule(f"model.layers.{{i}}.attn.{name}_conv1d.weight", "blocks.{i}.mixer.conv.weight", rows=span)
        for name, span in zip("qkv", rows, strict=True)
    )
    norm, decay = "o_norm", "f_proj"
    if isinstance(mixer, LinearAttention):
        norm, decay = "g_norm" if mixer.gate == "none" else "g_norm_swish_gate", "gk_proj"
    own = weight_rules(f"""
        model.layers.{{i}}.attn.{norm}            blocks.{{i}}.mixer.norm
        model.layers.{{i}}.attn.{decay}.{{0,1}}   blocks.{{i}}.mixer.a_{{down,up}}
        model.layers.{{i}}.attn.g_proj.{{0,1}}    blocks.{{i}}.mixer.gate_{{down,up}}
    """)
    return (*RULES, *own, *convolutions)


def _family(name: str, architecture: str, keys: ConfigTable, **tables: Mapping[str, Values]) -> Family:
    source = f"defaults of flash-linear-attention's {architecture}Config"
    named = presets(source, keys.build, tables.get("sizes", {})) | tiny(keys.build, tables.get("small", {}))
    return Family(name, named, Format(name, f"{architecture}ForCausalLM", keys, _rules, "model.", class_heads={}))


LARGE: Values = {"num_layers": 24, "d_model": 2048, "context_length": 2048}
FAMILIES = {family.name: family for family in (
    _family("gla", "GLA", GLA,
        sizes={"gla-1.3b": LARGE | dict(num_heads=4, head_dim=256, v_head_dim=512, gate="silu", d_ff=5632)},
        small={"gla-tiny": dict(num_layers=2, num_heads=4, head_dim=8, v_head_dim=16, gate="silu", d_ff=172)}),
    _family("retnet", "RetNet", RETNET,
        sizes={"retnet-1.3b": LARGE | dict(num_heads=8, head_dim=256, v_head_dim=512, gate="silu", d_ff=2816)},
        small={"retnet-tiny": dict(num_layers=2, num_heads=4, head_dim=16, v_head_dim=32, gate="silu", d_ff=128)}),
    _family("delta_net", "DeltaNet", DELTA_NET,
        sizes={"deltanet-1.3b": LARGE | dict(num_heads=16, gate="none", d_ff=5632)},
        small={"deltanet-tiny": dict(num_layers=2, num_heads=4, head_dim=16, v_head_dim=16, gate="none", d_ff=172)}),
    _family("gated_deltanet", "GatedDeltaNet", GATED_DELTANET),
    _family("kda", "KDA", KDA),
    _family("transformer", "Transformer", TRANSFORMER),
)}
