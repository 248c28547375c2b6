"""Inference of an attention specification from the names and shapes of unknown tensors."""

from typing import Literal, get_args

from archetype.parts.attention.infer_index import read_index
from archetype.parts.attention.infer_sizes import gate_in_queries, head_sizes, value_width
from archetype.parts.attention.spec import (
    LAMBDAS,
    Attention,
    AttentionConvolutions,
    Differential,
    JointConvolution,
    OutputGate,
    QueryScale,
)
from archetype.parts.gain.spec import Gain
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import RelativeLogits
from archetype.roles.checkpoint import (
    CheckpointMixer,
    DoubledQuery,
    FusedOrder,
    Joint,
    MixerReader,
    NameTable,
)
from archetype.roles.norm import VectorNorm
from archetype.spec.base import MAX_LENGTH
from archetype.spec.registry import provides

SCORE_SCALE = ("attention_multiplier", "softmax_scale")
HEAD_BY_HEAD = "query_key_value"  # the name of fused tensors that usually interleave q, k and v per head

LOG_SCALING = ("log_scaling_n_floor", "log_scaling_alpha")  # of Inkling's layers without windows

GATE_ACTIVATION = "no file states the activation of attention's gate"

PREFIX = (
    r"(?:\w+\.)*?(?:self_attn|self_attention|attention|attn|mha|mixer|multi_head_attention|temporal_block)\."
    r"(?:self\.|attention\.)?"
)
NAMES: NameTable = (
    (rf"{PREFIX}index(?:er\.|_)q_proj", "index.q"),
    (rf"{PREFIX}index(?:er\.|_)k_proj", "index.k"),
    (rf"{PREFIX}index(?:er\.|_)q_(?:layer)?norm", "index.q_norm"),
    (rf"{PREFIX}index(?:er\.|_)k_(?:layer)?norm", "index.k_norm"),
    (rf"{PREFIX}indexer\.index_qk_proj", "index.qk"),
    *((rf"{PREFIX}indexer\.w{name}", f"index.{name}") for name in "qk"),
    (rf"{PREFIX}indexer\.weights_proj", "index.weights"),
    (rf"{PREFIX}(?:q_norm|q_layernorm|query_layernorm|q_ln|query_norm)", "q_norm"),
    (rf"{PREFIX}(?:k_norm|k_layernorm|key_layernorm|k_ln|key_norm)", "k_norm"),
    (rf"{PREFIX}(?:q_proj|query|wq|Wq|q_lin|query_proj|q)", "q"),
    (rf"{PREFIX}(?:k_proj|key|wk|Wk|k_lin|key_proj|k)", "k"),
    (rf"{PREFIX}(?:v_proj|value|wv|Wv|v_lin|value_proj|v)", "v"),
    (rf"{PREFIX}(?:qkv_proj|query_key_value|c_attn|Wqkv|qkv|W_pack|in_proj)", "qkv"),
    (rf"{PREFIX}gqkv_proj", "gqkv"),
    (rf"{PREFIX}(?:o_proj|out_proj|dense|c_proj|wo|out_lin|out|o|output\.dense|linear_out)", "o"),
    (rf"{PREFIX}(?:gate_proj|g_proj)", "gate"),
    (rf"{PREFIX}attn_sub_norm", "heads_norm"),
    (rf"{PREFIX}dt_proj", "key_bias.project"),
    *((rf"{PREFIX}v_proj_{name}", f"v_{name}") for name in ("current", "delayed")),
    *((rf"{PREFIX}joint\.{name}", f"joint.{name}") for name in ("depthwise", "grouped")),
    (rf"{PREFIX}r_proj", "position_query"),
    *((rf"{PREFIX}{place}_sconv\.conv1d", f"convolutions.{place}") for place in ("k", "v", "output")),
    *((rf"{PREFIX}{name}", name) for name in ("query_gain", "gate_gain")),
)
DIFFERENTIAL: NameTable = tuple((rf"{PREFIX}{name}", f"differential.{name}") for name in LAMBDAS)


def read(tensors: CheckpointMixer) -> Attention:
    """Infer attention: head sizes from config keys and shapes, most other fields from the tensors present."""
    config, quirks = tensors.config, tensors.quirks
    source = _source_of_keys(tensors)
    heads, num_kv_heads, head_dim = head_sizes(tensors, has_keys=source is None)
    keys_as_values = _keys_as_values(tensors)
    biased = {name: "qkv.bias" in tensors.shapes or f"{name}.bias" in tensors.shapes for name in "qkv"}
    position = _relative_logits(tensors, heads) or tensors.position(head_dim)
    rotates = not position.is_absent
    norm, over = _query_norm(tensors, head_dim, rotates)
    if "qkv.weight" in tensors.shapes:
        _fused_order(tensors)
    after = rotates and not norm.is_absent
    if after and not quirks.qk_norm:
        why = "no file states whether queries and keys are normalized before or after rotation"
        after = tensors.settle("qk_norm_after_rope", (False, True), why)
    return Attention(
        num_heads=heads,
        num_kv_heads=None if num_kv_heads == heads else num_kv_heads,
        head_dim=None if head_dim * heads == tensors.d_model else head_dim,
        v_head_dim=value_width(tensors, num_kv_heads, head_dim),
        bias=biased | {"o": "o.bias" in tensors.shapes},
        scale=_score_scale(tensors, head_dim),
        softcap=config.optional_positive("attn_logit_softcapping"),
        clip_qkv=config.optional_positive("clip_qkv"),
        qk_norm=norm,
        qk_norm_over=over,
        qk_norm_after_rope=after and (not quirks.qk_norm or quirks.qk_norm_after_rope),
        keys_as_values=keys_as_values,
        value_norm=RMSNorm(eps=tensors.eps, weight=False) if quirks.value_norm else NoNorm(),
        value_scale=config.optional_positive("attention_value_scale", 1.0) or 1.0,
        sinks="sinks" in tensors.shapes,
        gate=_gate(tensors, heads),
        query_gain=_gain(tensors, "query_gain", head_dim),
        gate_gain=_gain(tensors, "gate_gain", tensors.d_model**0.5),
        differential=_differential(tensors, head_dim),
        heads_norm=tensors.norm("heads_norm.bias" in tensors.shapes)
        if "heads_norm.weight" in tensors.shapes or quirks.output_norms
        else NoNorm(),
        query_scale=query_scale(tensors, rotates),
        joint_convolution=_joint_convolution(tensors, (heads + num_kv_heads) * head_dim, head_dim),
        key_factors="key_factors" in tensors.shapes,
        key_bias="key_bias.rate" in tensors.shapes,
        convolutions=_convolutions(tensors),
        position=position,
        pattern=tensors.pattern(),
        keys_from=source,
        index=read_index(tensors, position, head_dim),
    )


def _joint_convolution(tensors: CheckpointMixer, channels: int, head_dim: int) -> JointConvolution | None:
    # ZAYA1, which has two matrices for the values of this token and of the one before
    names = ("joint.depthwise", "joint.grouped", "v_current", "v_delayed")
    there = [f"{name}.weight" in tensors.shapes for name in names]
    if not any(there):
        return None
    shapes = [tensors.shape(f"{name}.weight") for name in names]
    kernels = shapes[0][-1], shapes[1][-1]
    expected = [(channels, 1, kernels[0]), (channels, head_dim, kernels[1])]
    if shapes[:2] != expected or shapes[2] != shapes[3]:
        raise tensors.missing("unknown convolutions of queries and keys")
    return JointConvolution(kernels=kernels)


def _relative_logits(tensors: CheckpointMixer, heads: int) -> RelativeLogits | None:
    # Inkling; every head has some features that choose its biases
    if "score_bias.bank" not in tensors.shapes:
        if "position_query.weight" in tensors.shapes:
            raise tensors.missing("additional query features of unknown use")
        return None
    if len(bank := tensors.shape("score_bias.bank")) != 2:
        raise tensors.missing("unknown position biases")
    rank, extent = bank
    if tensors.sides("position_query.weight")[0] != heads * rank:
        raise tensors.missing("position biases whose features do not fit the heads")
    return RelativeLogits(rank=rank, extent=extent)


def _convolutions(tensors: CheckpointMixer) -> AttentionConvolutions | None:
    shapes = {place: tensors.shapes.get(f"convolutions.{place}.weight") for place in ("k", "v", "output")}
    kernels = {shape[-1] for shape in shapes.values() if shape is not None}
    if not kernels:
        return None
    if len(kernels) > 1:
        raise tensors.missing("convolutions of different kernel sizes")
    return AttentionConvolutions(at=tuple(place for place in shapes if shapes[place]), kernel=kernels.pop())


def _gain(tensors: CheckpointMixer, name: str, init: float) -> Gain | None:
    # Dory: squares of numbers that begin at the deviation of all matrices
    if f"{name}.weight" not in tensors.shapes:
        return None
    return Gain(init=init, stored=tensors.config.positive("initializer_range"), squared=True)


def _differential(tensors: CheckpointMixer, head_dim: int) -> Differential | None:
    # DiffLlama's norm has no weights
    if not any(f"differential.{name}" in tensors.shapes for name in LAMBDAS):
        return None
    if any(tensors.shape(f"differential.{name}") != (head_dim,) for name in LAMBDAS):
        raise tensors.missing("differential attention whose vectors do not fit the head width")
    tensors.settle("head_pairs", ("halves",), "no file states which heads form a pair")
    return Differential(norm=RMSNorm(eps=tensors.eps, weight=False))


def _source_of_keys(tensors: CheckpointMixer) -> int | None:
    # the last layers read the keys of the last earlier layer of their own kind (Gemma 3n, Gemma 4)
    config = tensors.config
    if not (shared := config.get("num_kv_shared_layers")):
        return None
    first = config.size("num_hidden_layers") - config.size("num_kv_shared_layers")
    if tensors.number < first:
        return None
    kinds = config.get("layer_types")
    for layer in range(first - 1, -1, -1):
        if isinstance(kinds, list) and tensors.number < len(kinds) and kinds[layer] == kinds[tensors.number]:
            return tensors.block_of(layer)
    raise config.error(
        "num_kv_shared_layers", f"{shared} leaves layer {tensors.number} no keys to read", "fix the file"
    )


def _keys_as_values(tensors: CheckpointMixer) -> bool:
    # Gemma 4: in layers with full attention, which then have no projection to values
    says_so = bool(tensors.config.get("attention_k_eq_v")) and tensors.entry("layer_types") == "full_attention"
    if says_so and "v.weight" in tensors.shapes:
        raise tensors.missing("value projections in a layer that uses its keys as values")
    return says_so


def _query_norm(tensors: CheckpointMixer, head_dim: int, rotates: bool) -> tuple[VectorNorm, Literal["head", "all"]]:
    # a norm without weights after the rotation is absent in layers without rotary positions (Llama 4)
    if tensors.quirks.qk_norm:
        is_there = tensors.config.flag("use_qk_norm", True) and (rotates or not tensors.quirks.qk_norm_after_rope)
        if is_there and (eps := tensors.quirks.qk_norm_eps) is not None:
            return RMSNorm(eps=eps, weight=False), "head"
        return tensors.norm(bias=False, weight=False) if is_there else NoNorm(), "head"
    if "q_norm.weight" not in tensors.shapes:
        return NoNorm(), "head"
    norm = tensors.norm(bias="q_norm.bias" in tensors.shapes)
    return norm, "head" if tensors.shapes["q_norm.weight"] == (head_dim,) else "all"


def query_scale(tensors: CheckpointMixer, rotates: bool) -> QueryScale | None:
    """Return the query scaling: Llama 4's or Beam's in layers without rotary positions, or from the rotary settings."""
    if tensors.quirks.query_power is not None and not rotates:
        beta, length = tensors.quirks.query_power
        return QueryScale(beta=beta, length=length, offset=1, form="power")
    if tensors.config.get("attn_temperature_tuning") and not rotates:
        beta, length = tensors.config.positive("attn_scale"), tensors.config.size("floor_scale", None, MAX_LENGTH)
        return QueryScale(beta=beta, length=length, offset=1)
    if tensors.config.get(LOG_SCALING[0]) is not None and tensors.entry("layer_types") == "hybrid":
        length, beta = tensors.config.size(LOG_SCALING[0], None, MAX_LENGTH), tensors.config.positive(LOG_SCALING[1])
        return QueryScale(beta=beta, length=length, offset=1, form="log_ratio")
    key = "rope_scaling" if tensors.config.get("rope_scaling") else "rope_parameters"
    values = tensors.config.get(key)
    if not isinstance(values, dict) or not values.get("llama_4_scaling_beta"):
        return None
    section = tensors.config.section(key)
    assert section is not None
    length = section.size("original_max_position_embeddings", None, MAX_LENGTH)
    return QueryScale(beta=section.positive("llama_4_scaling_beta"), length=length)


def _gate(tensors: CheckpointMixer, heads: int) -> OutputGate | None:
    # its weights may be stored together with those of the queries
    is_in_queries = gate_in_queries(tensors)
    if tensors.shapes.keys().isdisjoint(("gate.weight", "gqkv.weight")) and not is_in_queries:
        if "gate_bias" in tensors.shapes:
            raise tensors.missing("a gate bias without a gate")
        return None
    if is_in_queries:
        _doubled_query(tensors)
    per_head = "gate.weight" in tensors.shapes and tensors.shapes["gate.weight"][0] == heads
    activation = tensors.settle("gate_activation", ("sigmoid", "softplus"), GATE_ACTIVATION)
    has_bias = "gate_bias" in tensors.shapes
    if has_bias and tensors.shape("gate_bias") != (heads,):
        raise tensors.missing(f"a gate with {tensors.shape('gate_bias')} biases for {heads} heads")
    return OutputGate(per="head" if per_head else "feature", activation=activation, bias=has_bias)


def _doubled_query(tensors: CheckpointMixer) -> DoubledQuery:
    why = "the query projection has twice the rows, and no file states which belong to the gate"
    return tensors.settle("doubled_query", get_args(DoubledQuery), why)


def _fused_order(tensors: CheckpointMixer) -> str:
    name = tensors.names["qkv.weight"]
    usual = "qkv_per_head" if HEAD_BY_HEAD in name else "qkv"
    why = f"no file states the order of queries, keys and values in {name.split('.')[-2]}"
    values = sorted(get_args(FusedOrder), key=lambda order: order != usual)
    return tensors.settle("fused_order", tuple(values), why)


def _score_scale(tensors: CheckpointMixer, head_dim: int) -> float | None:
    # None for the usual 1 / sqrt(head_dim)
    config = tensors.config
    if (width := config.optional_positive("query_pre_attn_scalar")) is not None:
        return None if width == head_dim else width**-0.5
    for key in SCORE_SCALE:
        if (scale := config.optional_positive(key)) is not None:
            return scale
    if (factor := config.optional_positive("key_multiplier", 1.0) or 1.0) != 1.0:  # of keys (Falcon-H1)
        return float(factor * head_dim**-0.5)
    if config.get("scale_attn_weights") is not None:
        return None if config.flag("scale_attn_weights", True) else 1.0
    why = "no file states whether scores are divided by sqrt(head_dim)"
    return 1.0 if tensors.settle("unscaled_scores", (False, True), why) else None


def _joint(mixer: Attention, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    # queries with gates, or queries, keys and values
    if path == "q" and mixer.gate is not None and "gate.weight" not in tensors.shapes:
        parts, _, times = _doubled_query(tensors).partition("_per_")
        first, second = ("q" if part == "query" else part for part in parts.split("_"))
        return Joint((first, second), mixer.num_heads if times else 1)
    if path in ("v_current", "v_delayed"):
        half = tensors.shape(f"{path}.weight")[0]
        return Joint(("v",), rows=(0, half) if path == "v_current" else (half, 2 * half))
    if path == "index.qk":
        return Joint(("index.q", "index.k"))
    if path == "gqkv":  # as transformers splits it
        return Joint(("gate", "q", "k", "v"))
    if path != "qkv":
        return None
    parts, _, times = _fused_order(tensors).partition("_per_")
    shards = tensors.size(("num_key_value_heads",)) or 1
    return Joint(parts, {"": 1, "quarter": 4, "shard": shards}.get(times, mixer.num_kv_heads or mixer.num_heads))


SINKS = (rf"{PREFIX}(?:sinks|softmax_offset|attention_sink_bias)", "sinks")
KEY_FACTORS = (rf"{PREFIX}key_factors", "key_factors")
KEY_RATE = (rf"{PREFIX}A", "key_bias.rate")
GATE_BIAS = (rf"{PREFIX}gate_bias", "gate_bias")
POSITION_BANK = (rf"{PREFIX}rel_logits_proj\.proj", "score_bias.bank")
provides("infer", Attention)(
    MixerReader(
        NAMES,
        read,
        parameters=(SINKS, GATE_BIAS, KEY_FACTORS, KEY_RATE, POSITION_BANK, *DIFFERENTIAL),
        stands_alone=False,
        joint=_joint,
    )
)
