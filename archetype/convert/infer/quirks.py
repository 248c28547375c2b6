"""Tables of the spellings of keys in published configurations, and of settings that only a family's code fixes.

Spellings are tried in order, the most common first.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from archetype.convert.infer.names import HASHES
from archetype.families.config import Config
from archetype.parts.activation.spec import GELUTanh, ReLU
from archetype.parts.norm.spec import L2Norm, LayerNorm, RMSNorm
from archetype.parts.position.spec import Sinusoidal
from archetype.roles.activation import Activation
from archetype.roles.checkpoint import MixerQuirks

# Sizes and settings in config.json.
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length",
           "model_max_length", "context_length")  # fmt: skip
EPS = (
    "rms_norm_eps",
    "layer_norm_epsilon",
    "layer_norm_eps",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
    "rms_norm_epsilon",
)
ACTIVATION = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "afn",
    "mlp_hidden_act",
    "hidden_activation_function",
    "ffn_activation",
)
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
SCORING = ("scoring_func", "expert_selection_fn", "moe_router_activation_func")  # router scores: softmax or sigmoid
RENORMALIZE, GROUPS = ("norm_topk_prob", "moe_renormalize"), ("n_group", "num_expert_group")
ROUTER_SCALE = (
    "routed_scaling_factor",
    "router_scaling_factor",
    "router_scale",
    "route_scale",
    "moe_routed_scaling_factor",
)
WINDOW = ("sliding_window", "window_size")
OVERRIDES = "per_layer_config"  # of transformers: keys with another value in some layers, by the layers' indices
LAYER_KINDS = ("layer_types", "attention_layers")
FULL_EVERY = ("sliding_window_pattern", "_sliding_window_pattern")  # period of layers with full attention
EMBEDDING_SCALE = ("embedding_multiplier", "scale_emb", "embedding_scale")
HEAD_SCALE = ("logit_scale", "lm_head_multiplier")
INITIAL_STD = ("initializer_range", "init_std", "init_method_std")
PARALLEL = ("use_parallel_residual", "parallel_residual", "parallel_attn")
NORMS_FIRST = ("do_layer_norm_before", "normalize_before")
# Classes of text decoders with a head.
DECODERS = r"CausalLM|LMHead|DoubleHeads|Generation"
# Keys that imply rotary positions.
ROTARY = frozenset(
    {
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "rotary_pct",
        "rotary_dim",
        "rotary_emb_base",
        "partial_rotary_factor",
    }
)
ROTARY_FRACTION = ("rotary_pct", "partial_rotary_factor")

# Layouts that neither keys nor tensors determine, as named in `--set`.
LAYOUTS = frozenset({
    "delta_order", "doubled_query", "expert_bias_on", "experts_layout", "fused_order", "gate_activation",
    "gate_up_order", "head_pairs", "in_proj_order", "index_interleaved", "interleaved", "latent_order",
    "logits_times_scaling", "matrix_layout", "norm_first", "norm_kind", "norms_first", "parallel", "positions",
    "positions_after_padding", "qk_norm_after_rope", "renormalize", "reversed", "scaled_embedding", "sigmoid",
    "stacked_order", "unit_offset", "unscaled_scores", "w1_is_gate", "weighs_inputs",
})  # fmt: skip

# Keys that do not change what a trained model computes on text, or that tensors show.
NEUTRAL = (
    r".*(dropout|pdrop|_drop|layerdrop|jitter).*",
    r".*(initializer|_init|init_|initialization|lambda_std_dev).*",
    r".*(_bias|^bias|^use_bias|_biases)",
    r".*(aux_loss|router_logits|loss_type|loss_coef|z_loss).*",
    r".*(tie_|summary_|pretraining_tp|attention_type|layer_norm_before|normalize_before).*",
    r".*(vocab_size|hidden_size|embd|embed_dim|d_model|intermediate|n_inner|ffn|dff|d_ff|ff_dim|embedding_size|word_embed_proj_dim).*",
    r".*(n_layer|num_layers|num_hidden_layers|decoder_layers|num_key_value_heads|num_kv_heads|n_ctx|multi_query).*",
    r".*(num_.*experts|n_.*experts|moe_layer.*|mlp_layer_types|mlp_only_layers|decoder_sparse_step|first_k_dense.*)",
    r".*(image|vision|visual|audio|multimodal|boi|eoi|mm_tokens|patch_size|num_channels|projector).*",
    r".*(encoder_|cross_attention|qkv_bias|parallel_attn|new_decoder_architecture|num_ln_in_parallel_attn).*",
    r"(kv_lora_rank|q_lora_rank|qk_head_dim|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|qk_layernorm|use_qk_norm)",
    r"(use_post_norm|ignore_keys_at_rope_validation|type_vocab_size|position_embedding_type|layer_group_size)",
    r"(max_window_layers|attention_types|eod_token_id|static_.*|block_multiple_of)",
    r"(topk_method|scoring_func|enable_moe_fp32_combine|use_sliding_window|num_nextn_predict_layers)",
    r".*_token_(id|index)",
    # sizes of mixers, which their tensors show
    r"(linear_attn_config|full_attn_layers|kda_layers|short_conv_kernel_size|lru_width|conv1d_width)",
    r"(linear_(conv|key|value|num_value|num_heads|head_dim|a_log|dt).*|mamba_d_.*|mamba_dt_rank|mamba_expand|mamba_n(um)?_heads|mamba_head_dim|(ssm_)?state_size|conv_kernel.*)",
    r"(use_associative_scan|use_mamba_kernels|use_mambapy|(expert|attn)_layer_(offset|period)|attn_layer_indices)",
    r"(time_step_(rank|min|max|floor)|hybrid_layer_ids|num_dense_layers|max_target_positions)",
    r"(moe_latent_size|routed_expert_hidden_size|latent_moe_use_norm|mla_use_output_gate|interleave_moe_layer_step)",
    r"(global_head_dim|num_kv_shared_layers|hidden_size_per_layer_input|use_double_wide_mlp|enable_moe_block)",
    r"gating",  # whether a gate is of a head or of a feature, which its shape shows
    r"rescale_every",  # halves the stream and what is added to it in passes without gradients, for 16 bits
    r"(layers_block_type|block_types|hybrid_override_pattern|full_attn_idxs|mtp_.*)",  # kinds of layers, or left out
)
# Keys of parts that some models lack.
OF_ATTENTION = r".*(head|rope|attention|window|layer_types).*"
OF_EXPERTS = r".*(expert|moe|topk|routed|router|n_group).*"

Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class FamilyQuirks(MixerQuirks):
    """Settings fixed by a family's code in addition to the settings of its mixers.

    Attributes:
        positions_after_padding: positions begin at the padding token's id + 1.
        full_layers_without_rope: layers with full attention have no rotary positions, unlike layers with windows.
        dense_layers_rotate: dense layers are an exception to that if all of them have full attention.
        scaled_full_layers: `rope_scaling` only applies to layers with full attention.
        renormalize: the weights of a token's experts are normalized to sum to one.
        sigmoid: router scores are sigmoids.
        sparse_mixer: experts are chosen and weighed one after the other.
        activation: activation of the feed-forward part, whatever the file says.
        eps: epsilon of every norm, whatever the file says.
        norm: kind of all norms, if the tensors cannot show it.
        plain_final_norm: the last norm adds nothing to its weights, unlike `norm`.
        embedding_norm: norm without weights that follows the embedding.
        scaled_embedding: token vectors are multiplied by sqrt(d_model).
        round_scale: the factor sqrt(d_model) is first rounded to the vectors' dtype.
        added_position: computed position embeddings that are added to token vectors.
        inclusive_waves: exponents of the embeddings' frequencies go from 0 to 1 inclusive (tensor2tensor).
        half_window: without another key, the window is half of `local_attention`.
        rope: rotary positions that no key describes.
        rope_when_named: positions are rotary only if `position_embedding_type` says so.
        alibi_before_scale: ALiBi is added, in bfloat16, before scores are divided by sqrt(head_dim).
        unscaled_logits: the class around the text model does not scale its logits, whatever the file says.
        logits_times_scaling: `logits_scaling` multiplies the logits instead of dividing them.
        norm_first: the embedding's norm precedes the addition of position embeddings.
        clamps: networks whose gates are clamped at `swiglu_limit` (None: those of gpt-oss, if any).
        overridden: keys of `per_layer_config` that the class reads.
        weighs_inputs: router weights multiply the inputs of experts.
        scaled_residual: the residual sum is divided by the square root of the number of its terms.
        streams_mean: the last layer's residual streams become their mean, which has no tensors.
        side_by_side: each layer has attention beside a state space.
        expert_bias_on: scores to which the expert selection bias is added.
        loops: key with the number of passes over all layers, which share weights (None: one pass).
        only: keys that the class treats differently, each with the value for which the difference does not matter.
        asks: keys whose values the class derives if the file lacks them.
        derive: returns keys that the class computes from others.
        renames: patterns of tensor names, with their replacements.
        embedding_factors: token vectors are multiplied by learned factors.
        idle_output: what experts return that compute nothing.
        delayed_experts: the output of experts next to a network is added after the next layer.
        computed: pattern of tensors that are computed instead of being read.
    """

    positions_after_padding: bool = False
    full_layers_without_rope: bool = False
    dense_layers_rotate: bool = False
    scaled_full_layers: bool = False
    renormalize: bool = False
    sigmoid: bool = False
    sparse_mixer: bool = False
    activation: Activation | None = None
    eps: float | None = None
    norm: LayerNorm | RMSNorm | L2Norm | None = None
    plain_final_norm: bool = False
    embedding_norm: bool = False
    scaled_embedding: bool = False
    round_scale: bool = False
    added_position: Sinusoidal | None = None
    inclusive_waves: bool = False
    half_window: bool = False
    rope: bool = False
    rope_when_named: bool = False
    alibi_before_scale: bool = False
    unscaled_logits: bool = False
    logits_times_scaling: bool = False
    norm_first: bool = False
    clamps: Literal["experts", "all"] | None = None
    overridden: tuple[str, ...] = ()
    weighs_inputs: bool = False
    scaled_residual: bool = False
    side_by_side: bool = False
    streams_mean: bool = False
    expert_bias_on: Literal["affinities", "logits"] = "affinities"
    loops: str | None = None
    only: tuple[tuple[str, Any], ...] = ()
    asks: tuple[str, ...] = ()
    derive: Callable[[Config], dict[str, Any]] | None = None
    renames: tuple[tuple[str, Replacement], ...] = ()
    computed: str | None = None
    delayed_experts: bool = False
    embedding_factors: bool = False
    idle_output: Literal["input", "zero"] = "input"


def mimo_v2_flash(keys: Config) -> dict[str, Any]:
    """Return what the class of MiMo-V2-Flash makes of absent keys, and of a window without the query's own position."""
    count = keys.get("num_hidden_layers") or 0
    kinds = keys.get("layer_types") or [
        "sliding_attention" if layer and (layer + 1) % 6 else "full_attention" for layer in range(count)
    ]
    sections = keys.get("rope_parameters") or {
        "full_attention": {"rope_type": "default", "rope_theta": 5e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    third = {"partial_rotary_factor": 0.334}
    derived: dict[str, Any] = {
        "layer_types": kinds,
        "rope_parameters": {kind: third | section for kind, section in sections.items() if isinstance(section, dict)},
    }
    before = keys.get("sliding_window_size")
    return derived | ({"sliding_window": before + 1} if isinstance(before, int) else {})


def mimo_v2(keys: Config, window: int | None = None) -> dict[str, Any]:
    """Return what MiMo-V2.5's and V2.6's own keys say, under the usual names."""
    for name in ("head_dim", "v_head_dim"):
        keys.expect(f"swa_{name}", keys.get(name), "heads of another width in layers with windows")
    pattern, share = keys.get("hybrid_layer_pattern"), {"partial_rotary_factor": keys.positive("partial_rotary_factor")}
    if not isinstance(pattern, list) or not {*pattern} <= {0, 1}:
        raise keys.error("hybrid_layer_pattern", "has no 0 or 1 for each layer", "fix the file")
    if (scaling := keys.section("rope_scaling")) is not None:
        scaling.expect("rope_type", "default", "scaled rotations")
    # which layers are dense, how projections are stored, and which layers have sinks, the tensors show
    keys.used |= {
        "moe_layer_freq",
        "attention_projection_layout",
        "attention_chunk_size",
        "add_swa_attention_sink_bias",
    }
    return {
        "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in pattern],
        # of the positions before, and the query's own
        "sliding_window": window or keys.size("sliding_window_size") + 1,
        "rope_parameters": {
            f"{kind}_attention": share | {"rope_type": "default", "rope_theta": keys.positive(key)}
            for kind, key in (("full", "rope_theta"), ("sliding", "swa_rope_theta"))
        },
        "rope_scaling": None,
    }


def naive_n05_flash(keys: Config) -> dict[str, Any]:
    """Return Naive N0.5's keys as MiMo-V2.5's: its window counts the query's own position."""
    keys.expect("enable_dsa", True, "full attention to all keys")
    keys.expect("index_n_kv_heads", 1, "an index with several keys of a token")
    keys.used |= {"add_full_attention_sink_bias", "indexer_activation_dtype", "sliding_window_size"}
    scale = keys.get("routed_scaling_factor") or 1.0
    return mimo_v2(keys, keys.size("sliding_window")) | {"routed_scaling_factor": scale}


def step3p5(keys: Config) -> dict[str, Any]:
    """Return Step 3.5's own keys under the usual names; its lists go on for the layers that predict further tokens."""
    kinds = keys.get("layer_types")
    count, other = keys.size("num_hidden_layers"), keys.section("attention_other_setting") or Config({}, keys.place)
    heads = {"full_attention": keys.size("num_attention_heads")}
    heads["sliding_attention"] = other.size("num_attention_heads", heads["full_attention"])
    if not isinstance(kinds, list) or len(kinds) < count or any(kind not in heads for kind in kinds[:count]):
        raise keys.error("layer_types", f"has no known kind for each of {count} layers", f"use {' or '.join(heads)}")
    other.expect("head_dim", keys.get("head_dim"), "heads of another width in layers with windows")
    scaling, scaled = keys.get("rope_scaling") or {}, keys.get("yarn_only_types")
    sections: dict[str, Any] = {}
    if scaling and scaled != ["full_attention"]:
        cause = f"{scaled!r} is not ['full_attention'], the layers whose rotations transformers scales"
        raise keys.error("yarn_only_types", cause, "this is not supported")
    if keys.get("rope_parameters"):
        remedy = "use rope_theta, partial_rotary_factors and rope_scaling"
        raise keys.error("rope_parameters", "is not read for this type", remedy)
    for layer, kind in enumerate(kinds[:count]):
        section: dict[str, Any] = {"rope_type": "default"}
        for name, key in (("rope_theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factors")):
            values = keys.get(key)
            if isinstance(values, list) and layer >= len(values):
                raise keys.error(key, f"has no entry for layer {layer}", "fix the file")
            section |= {} if values is None else {name: values[layer] if isinstance(values, list) else values}
        section |= scaling if kind == "full_attention" else {}
        if sections.setdefault(kind, section) != section:
            raise keys.error("rope_theta", f"differs between layers of the kind {kind}", "this is not supported")
    keys.used |= {"moe_layers_enum", "use_head_wise_attn_gate", "need_fp32_gate", "use_moe_router_bias", "max_seq_len"}
    keys.expect("moe_router_activation", "sigmoid", "another score function")
    return {
        "layer_types": kinds[:count],
        "num_attention_heads": [heads[kind] for kind in kinds[:count]],
        "rope_parameters": sections,
        **dict.fromkeys(("rope_theta", "rope_scaling")),
        "num_experts_per_tok": keys.size("moe_top_k"),
        "norm_topk_prob": keys.flag("norm_expert_weight", True),
        "routed_scaling_factor": keys.positive("moe_router_scaling_factor", 1.0),
        "hidden_act": "silu",
    }


def solar_open2(keys: Config) -> dict[str, Any]:
    """Return Solar Open 2's own keys under the usual names, and refuse rotations and norms of queries and keys."""
    kinds, full, count = keys.get("layer_types"), keys.get("gqa_layers"), keys.size("num_hidden_layers")
    if full is None:  # one layer with full attention, then `gqa_interval` others
        full = range(0, count, keys.size("gqa_interval", 3) + 1)
    for key in ("use_rope", "use_qk_norm", "use_gqa_gate_bias"):
        keys.expect(key, False, "rotations, norms or biases that its attention lacks")
    rotary = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")  # stated, and not used
    keys.used |= {"use_gqa_gate", "kda_use_full_proj", "gqa_interval", *rotary}
    return {
        "layer_types": kinds or ["full_attention" if one in full else "linear_attention" for one in range(count)],
        "linear_allow_neg_eigval": keys.flag("kda_allow_neg_eigval", True),
        **dict.fromkeys(rotary),
    }


def muse_glimmer(keys: Config) -> dict[str, Any]:
    """Return Muse Glimmer's factors of normed queries and of logits under the usual names."""
    # transformers has values of its own for a file that lacks these
    for key in ("final_logit_softcapping", "layer_rope_theta", "layer_types", "post_norm_eps"):
        if keys.values.get(key) is None:
            raise keys.error(key, "is missing, and the muse_glimmer class has a value of its own", "add it")
    # a norm without weights leaves queries of this size
    scale = keys.positive("qk_scale_factor") * keys.size("head_dim") ** -0.5
    return {"attention_multiplier": scale, "logit_scale": keys.positive("output_multiplier")}


def inkling(keys: Config) -> dict[str, Any]:
    """Return Inkling's kinds of layers, the sizes that each kind has, and its factors under the usual names."""
    count, local = keys.get("num_hidden_layers") or 0, keys.get("local_layer_ids")
    kinds = keys.get("layer_types")
    if not isinstance(kinds, list):
        is_local = [layer in local if isinstance(local, list) else (layer + 1) % 6 > 0 for layer in range(count)]
        kinds = ["hybrid_sliding" if windowed else "hybrid" for windowed in is_local]
    heads = {
        kind: keys.size(f"{start}num_attention_heads") for kind, start in (("hybrid", ""), ("hybrid_sliding", "swa_"))
    }
    if keys.size("swa_head_dim") != keys.size("head_dim"):
        raise keys.error("swa_head_dim", "heads of another width than in layers without windows are not supported")
    factor = keys.optional_positive("embedding_multiplier") or keys.positive("logits_mup_width_multiplier")
    for key in ("rms_norm_eps", "route_scale"):
        keys.positive(key)  # the usual values of other types are not those of the class
    # sizes that tensors show
    keys.used |= {"d_rel", "rel_extent", "dense_mlp_idx", "dense_intermediate_size", "sconv_kernel_size"}
    return {
        "layer_types": kinds,
        "sliding_window": keys.get("sliding_window") or keys.size("sliding_window_size"),
        "num_attention_heads": [heads.get(kind) for kind in kinds],
        "attention_multiplier": 1 / keys.size("head_dim"),
        "embedding_multiplier": None,  # the class's name of the factor of logits
        "logit_scale": 1 / factor,
    }


def nanbeige(keys: Config) -> dict[str, Any]:
    """Return the passes that Nanbeige 4.2's class makes, and refuse what its published models do not have."""
    for key in ("emb_neighbor_num", "insert_ngram_layer_idx", "ngram_insert_all_layers", "enable_double_loop_split",
                "loop_share_kv", "enable_hyper_connection", "enable_mhc", "enable_depth_attention"):  # fmt: skip
        if value := keys.get(key):
            raise keys.error(key, f"{value!r} needs a part that is not supported", "only false is")
    # settings of these parts, and of losses in training
    keys.used |= {
        key for key in keys.values if key.startswith(("ngram_", "mhc_", "depth_attention_", "emb_", "skip_n"))
    }
    keys.used |= {"loop_middle_layers", "num_residual_streams", "enable_h_res_identity"}
    weights = keys.get("loop_loss_weights") or []
    return {"num_loops": len(weights) + 1 if weights else keys.get("num_loops", 1)}


def dbrx(keys: Config) -> dict[str, Any]:
    """Return what DBRX's sections for attention and experts say, under the usual names."""
    attention, network = (keys.section(name) or Config({}, keys.place) for name in ("attn_config", "ffn_config"))
    rotary = keys.get("rope_parameters") or keys.get("rope_scaling")
    theta = rotary.get("rope_theta") if isinstance(rotary, dict) else keys.get("rope_theta")
    if (other := attention.get("rope_theta", theta)) != theta:
        cause = f"{other!r} is not {theta!r}, which transformers uses as it does not read this key"
        raise attention.error("rope_theta", cause, "set rope_theta outside this section to the same value")
    if (power := network.get("moe_normalize_expert_weights", 1)) not in (1, None):
        raise network.error(
            "moe_normalize_expert_weights", f"the norm of power {power!r} is not supported", "only 1 is"
        )
    activation = network.section("ffn_act_fn")
    return {
        "clip_qkv": attention.get("clip_qkv"),
        "num_experts_per_tok": network.get("moe_top_k", 1),
        "norm_topk_prob": power is not None,
        "hidden_act": "silu" if activation is None else activation.get("name", "silu"),
    }


def xlm(keys: Config) -> dict[str, Any]:
    """Return what XLM's own keys say, under the usual names, and refuse its encoders."""
    if keys.get("causal") is not True:
        raise keys.error("causal", "needs attention to later tokens, which is not supported", "only true is")
    for key in ("asm", "pre_norm"):
        keys.expect(key, False, "another head, or other norms")
    # sizes and tables that the tensors show, and ids
    keys.used |= {"emb_dim", "n_langs", "use_lang_emb", "lang_id", "is_encoder", "sinusoidal_embeddings", "n_words"}
    keys.used |= {f"{name}_index" for name in ("bos", "eos", "pad", "unk", "mask")} | {"start_n_top", "end_n_top"}
    return {"hidden_act": "gelu" if keys.get("gelu_activation", True) else "relu"}


def xlstm(keys: Config) -> dict[str, Any]:
    """Return xLSTM's soft cap under the usual name, and refuse norms with a bias."""
    if keys.flag("use_bias", False):
        raise keys.error("use_bias", "needs RMSNorm with a bias, which is not supported", "only false is")
    keys.expect("weight_mode", "single", "several projections in one tensor")
    # sizes, which the tensors show; how results are computed; and the last norm, which the class always has
    keys.used |= {"num_blocks", "embedding_dim", "num_heads", "qk_dim_factor", "v_dim_factor", "add_out_norm"}
    keys.used |= {"mode", "return_last_states", "norm_reduction_force_float32", "inference_state_dtype"}
    keys.used |= {f"{name}_kernel" for name in ("chunkwise", "sequence", "step")}
    keys.used |= {"autocast_kernel_dtype", "max_inference_chunksize"}
    return {"final_logit_softcapping": keys.optional_positive("output_logit_soft_cap"), "hidden_act": "silu"}


def deepseek_v4(keys: Config) -> dict[str, Any]:
    """Return what DeepSeek-V4's class makes of its older keys: kinds of layers, and rotary settings of each kind."""
    count, ratios, kinds = keys.get("num_hidden_layers") or 0, keys.get("compress_ratios"), keys.get("layer_types")
    if kinds is None and isinstance(ratios, list):
        kinds = [COMPRESSED.get(ratio) for ratio in ratios[:count]]
    keys.used |= {"compress_ratios", "compress_rope_theta", "num_hash_layers", "expert_dtype", "partial_rotary_factor"}
    stated = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    main, pooled = (stated.get(name) if isinstance(stated, dict) else None for name in ("main", "compress"))
    if not (isinstance(main, dict) and isinstance(pooled, dict)):
        flat = {key: value for key, value in dict(stated).items() if key not in ("main", "compress")}
        main = {"rope_type": "default", "rope_theta": keys.get("rope_theta", 10_000.0)}
        pooled = {**flat, "rope_theta": keys.get("compress_rope_theta", 160_000.0)}
        pooled["rope_type"] = pooled.pop("type", pooled.get("rope_type", "default"))
        if pooled["rope_type"] == "yarn":
            pooled.setdefault("attention_factor", 1.0)
    share = keys.get("partial_rotary_factor") or 0.125
    sections = {kind: pooled if ratio else main for ratio, kind in COMPRESSED.items()}
    unshared = {kind: {k: v for k, v in one.items() if k != "partial_rotary_factor"} for kind, one in sections.items()}
    return {
        "layer_types": kinds,
        "rope_parameters": unshared,
        "rope_scaling": None,
        "partial_rotary_factor": None,
        "qk_rope_head_dim": keys.get("qk_rope_head_dim") or int(keys.size("head_dim", 512) * share),
    }


def longcat_flash(keys: Config) -> dict[str, Any]:
    """Return how LongCat-Flash's router scores experts, which its class fixes."""
    keys.expect("router_bias", False, "a bias that the class does not read")
    return {"scoring_func": "softmax"}


ZAYA_KINDS = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}


def zaya(keys: Config) -> dict[str, Any]:
    """Return ZAYA1's kinds of layers under the usual names, and the rotary settings of its class."""
    kinds = keys.get("layer_types") or ["hybrid"] * (keys.get("num_hidden_layers") or 0)
    if unknown := [kind for kind in kinds if kind not in ZAYA_KINDS]:
        raise keys.error("layer_types", f"{unknown[0]!r} is not known", f"use {' or '.join(ZAYA_KINDS)}")
    keys.used |= {"cca_time0", "cca_time1", "router_hidden_size"}  # sizes, which the tensors show
    thetas = {"hybrid": 5e6, "hybrid_sliding": 1e4}
    usual = {kind: {"rope_theta": theta, "partial_rotary_factor": 0.5} for kind, theta in thetas.items()}
    sections = keys.get("rope_parameters") or usual
    # published files also have a key `rope_type`, which the class deletes
    rotary = {ZAYA_KINDS[kind]: section for kind, section in sections.items() if kind in ZAYA_KINDS}
    return {"layer_types": [ZAYA_KINDS[kind] for kind in kinds], "rope_parameters": rotary}


def _half_layer(name: re.Match[str]) -> str:
    # LongCat-Flash's layer is two of ours, and the first has the experts
    return f"{name[1]}{2 * int(name[2]) + int(name[4])}.{'mlp' if name[3] == 'mlps' else name[3]}.{name[5]}"


def _first_half(name: re.Match[str]) -> str:
    return f"{name[1]}{2 * int(name[2])}.moe.{name[3].replace('router.classifier.', 'router.')}"


def moshi(keys: Config) -> dict[str, Any]:
    """Refuse a window shorter than the context, which the class of Moshi applies to cached keys alone."""
    window, context = keys.get("sliding_window"), keys.get("max_position_embeddings")
    if isinstance(window, int) and isinstance(context, int) and window < context:
        cause = f"{window} keys are seen with a cache, and all {context} without one"
        raise keys.error("sliding_window", cause, "set it to max_position_embeddings")
    keys.used |= {"num_codebooks", "codebook_size", "depth_decoder_config"}  # of sound
    return {}


def recurrent_gemma(keys: Config) -> dict[str, Any]:
    """Return RecurrentGemma's keys under the usual names, and sqrt(d_model) as its class rounds it, to bfloat16."""
    fraction, exponent = math.frexp(keys.size("hidden_size") ** 0.5)
    return {
        "sliding_window": keys.size("attention_window_size"),
        "final_logit_softcapping": keys.positive("logits_soft_cap"),
        "embedding_multiplier": math.ldexp(round(fraction * 2**8), exponent - 8),
    }


def dory(keys: Config) -> dict[str, Any]:
    """Return Dory's layers, whose files count attention and networks apart, and the rotary settings of each kind."""
    kinds, count = keys.get("layer_types"), keys.get("num_hidden_layers") or 0
    derived: dict[str, Any] = {}
    if isinstance(kinds, list) and "mlp" in kinds:
        if "mlp" in kinds[::2] or set(kinds[1::2]) != {"mlp"}:
            raise keys.error("layer_types", "needs attention and network in turn", "fix the file")
        counts = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")
        derived = {key: value // 2 for key in counts if isinstance(value := keys.get(key), int)}
        kinds = kinds[::2]
    if kinds is None:
        kinds = ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(count)]
    thetas = {"sliding_attention": 1e4, "full_attention": 1e7}
    usual = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    return derived | {"layer_types": kinds, "rope_parameters": keys.get("rope_parameters") or usual}


def _pair_of_layers(name: re.Match[str]) -> str:
    # published files of Dory number attention and networks apart
    number, is_network = divmod(int(name[2]), 2)
    alphas = {"attn_alpha": "lambda_1", "mlp_alpha": "lambda_2"}
    return f"{name[1]}{number}.{alphas.get(name[3], 'mlp' if is_network else 'self_attn')}{name[4]}"


# Kinds of DeepSeek-V4's layers by the positions of a pooled key, in its older files.
COMPRESSED = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
NEIGHBOURS = FamilyQuirks(interleaved=True)
ROBERTA = FamilyQuirks(positions_after_padding=True)
GEMMA4 = FamilyQuirks(
    norm=RMSNorm(),
    scaled_embedding=True,
    round_scale=True,
    unscaled_scores=True,
    value_norm=True,
    renormalize=True,
    overridden=("head_dim", "num_key_value_heads"),
    asks=("layer_types", "rope_parameters"),
)
ONE_PLUS = FamilyQuirks(norm=RMSNorm(unit_offset=True), scaled_embedding=True, round_scale=True)
LONGCAT = FamilyQuirks(
    interleaved=True,
    head_dim_replaced=True,
    latents_scaled=True,
    delayed_experts=True,
    derive=longcat_flash,
    renames=(
        (r"(model\.layers\.)(\d+)\.mlp\.(.*)", _first_half),
        (
            r"(model\.layers\.)(\d+)\.(self_attn|mlps|(?:input|post_attention)_layernorm)\.([01])\.(.*)",
            _half_layer,
        ),
    ),
)
QUIRKS: dict[str, FamilyQuirks] = {
    **dict.fromkeys(("gptj", "cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5"), NEIGHBOURS),
    **dict.fromkeys(
        ("roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "data2vec-text", "roberta-prelayernorm"), ROBERTA
    ),
    **dict.fromkeys(("gemma", "gemma2", "vaultgemma"), ONE_PLUS),
    "gemma3_text": replace(ONE_PLUS, only=(("attn_logit_softcapping", None),)),  # the class never reads it
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), GEMMA4),
    "ministral3": FamilyQuirks(only=(("layer_types", None),)),
    "gemma3": FamilyQuirks(only=(("final_logit_softcapping", None),)),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), FamilyQuirks(unscaled_logits=True)),
    "gpt_bigcode": FamilyQuirks(only=(("multi_query", True),)),
    **dict.fromkeys(("mixtral", "granitemoe", "granitemoeshared", "granitemoe_swa"), FamilyQuirks(renormalize=True)),
    "aria_text": FamilyQuirks(renormalize=True, only=(("hidden_act", "silu"),)),  # except in the shared expert
    **dict.fromkeys(("bloom", "mpt"), FamilyQuirks(alibi=True)),
    "zamba2": FamilyQuirks(conv_silu=True, mixer_eps=1e-5, steps_from_min=True),
    "olmo3": FamilyQuirks(scaled_full_layers=True),
    "phimoe": FamilyQuirks(sparse_mixer=True, only=(("num_experts_per_tok", 2),)),  # the class always chooses two
    "olmoe": FamilyQuirks(only=(("sliding_window", None),)),
    "whisper": FamilyQuirks(only=(("scale_embedding", False),)),
    "falcon": FamilyQuirks(alibi_before_scale=True),
    "hyperclovax": FamilyQuirks(logits_times_scaling=True),
    "granitemoehybrid": FamilyQuirks(renormalize=True, rope_when_named=True),
    "hunyuan_v1_dense": FamilyQuirks(qk_norm_after_rope=True),
    "hunyuan_v1_moe": FamilyQuirks(qk_norm_after_rope=True, renormalize=True),
    "afmoe": FamilyQuirks(sigmoid=True, renormalize=True, full_layers_without_rope=True),
    "laguna": FamilyQuirks(sigmoid=True, renormalize=True, gate_activation="softplus"),
    "flint": FamilyQuirks(sigmoid=True, full_layers_without_rope=True),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        FamilyQuirks(norm=RMSNorm(unit_offset=True), gate_in_queries=True),
    ),
    "qwen3_5_moe_text": FamilyQuirks(norm=RMSNorm(unit_offset=True), gate_in_queries=True, renormalize=True),
    "qwen4_exp_text": FamilyQuirks(
        norm=RMSNorm(unit_offset=True), gate_in_queries=True, fused_order="qkv", computed=HASHES
    ),
    "kolibri1": FamilyQuirks(sigmoid=True, full_layers_without_rope=True, expert_bias_on="logits"),
    "blenderbot-small": FamilyQuirks(norm_first=True, only=(("scale_embedding", False),)),
    **dict.fromkeys(
        ("xlm", "flaubert"),
        FamilyQuirks(
            derive=xlm,
            renames=(
                (r"transformer\.attentions\.(\d+)\.(.*)", r"transformer.layers.\1.attention.\2"),
                (r"transformer\.ffns\.(\d+)\.(.*)", r"transformer.layers.\1.ffn.\2"),
                (r"transformer\.layer_norm([12])\.(\d+)\.(.*)", r"transformer.layers.\2.norm\1.\3"),
                (r"transformer\.layer_norm_emb\.(.*)", r"transformer.embedding_norm.\1"),
                (r"pred_layer\.proj\.(.*)", r"lm_head.\1"),
            ),
        ),
    ),
    "olmo_hybrid": FamilyQuirks(mixer_eps=1e-5),
    "falcon_h1": FamilyQuirks(side_by_side=True),
    "falcon_mamba": FamilyQuirks(norm=RMSNorm()),
    **dict.fromkeys(
        ("lfm2", "lfm2_moe", "lfm3"),
        FamilyQuirks(sigmoid=True, renames=((r"(.*\.)embedding_norm\.(.*)", r"\1final_norm.\2"),)),
    ),
    "sarvam_moe": FamilyQuirks(fused_order="qkv"),
    "codegen": FamilyQuirks(interleaved=True, fused_order="qvk_per_quarter"),
    "cohere2": FamilyQuirks(interleaved=True, full_layers_without_rope=True),
    "cohere2_moe": FamilyQuirks(
        interleaved=True, full_layers_without_rope=True, dense_layers_rotate=True, only=(("rope_scaling", None),)
    ),
    "cohere_compass_text": FamilyQuirks(asks=("layer_types",)),
    "dbrx": FamilyQuirks(
        norm=LayerNorm(),
        renames=((r"norm_attn_norm\.(.*)", r"\1"),),
        asks=("attn_config", "ffn_config"),
        derive=dbrx,
    ),
    "deepseek_v32": FamilyQuirks(interleaved=True, head_dim_replaced=True),
    "axk2": FamilyQuirks(sigmoid=True, interleaved=True, head_dim_replaced=True, doubled_query="query_gate_per_head"),
    "glm_moe_dsa": FamilyQuirks(interleaved=True, index_interleaved=True, head_dim_replaced=True),
    "dots3_note_text": FamilyQuirks(
        sigmoid=True,
        interleaved=True,
        index_interleaved=True,
        head_dim_replaced=True,
        latents_scaled=True,
        latents_eps_is_shared=True,
        share_is_of_head=True,
    ),
    "glm5_next_text": FamilyQuirks(
        sigmoid=True,
        clamps="all",
        head_dim_replaced=True,
        unrotated=True,
        latents_eps_is_shared=True,
        streams_mean=True,
    ),
    **dict.fromkeys(("longcat_flash", "longcat_flash_ngram"), LONGCAT),
    "doge": FamilyQuirks(
        renames=(
            ("input_residual", "mixer_residual.carried.weight"),
            ("post_attention_residual", "feedforward_residual.carried.weight"),
        )
    ),
    "zaya": FamilyQuirks(
        derive=zaya,
        qk_norm=True,
        qk_norm_eps=1e-12,
        embedding_factors=True,
        idle_output="zero",
        renames=(
            (r"model\.input_hidden_states_scale", "model.embedding_norm.weight"),
            (r"model\.input_hidden_states_bias", "model.embedding_norm.bias"),
            (r"self_attn\.qkv_proj\.conv_qk_(depthwise|grouped)\.(.*)", r"self_attn.joint.\1.\2"),
            (r"self_attn\.qkv_proj\.(.*)", r"self_attn.\1"),
            (r"self_attn\.qk_norm\.temp", "self_attn.key_factors"),
            *(
                (f"post_{theirs}_residual_scale\\.{term}_{kind}", f"{ours}_residual.{name}.{param}")
                for theirs, ours in (("attention", "mixer"), ("mlp", "feedforward"))
                for term, name in (("residual", "carried"), ("hidden_states", "added"))
                for kind, param in (("scale", "weight"), ("bias", "bias"))
            ),
            (r"mlp\.gate\.down_proj\.(.*)", r"mlp.router_network.down.\1"),
            (r"mlp\.gate\.router_mlp\.out_proj\.(.*)", r"mlp.router_network.out.\1"),
            (r"mlp\.gate\.router_mlp\.(.*)", r"mlp.router_network.\1"),
            (r"mlp\.gate\.router_states_scale", "mlp.router_network.carry"),
            (r"mlp\.gate\.balancing_biases", "mlp.gate.e_score_correction_bias"),
        ),
    ),
    "mistral4": FamilyQuirks(interleaved=True, share_is_of_head=True, asks=("rope_parameters",)),
    "kimi_linear": FamilyQuirks(sigmoid=True, unrotated=True),
    "bailing_hybrid": FamilyQuirks(sigmoid=True, interleaved=True, head_dim_replaced=True),
    "kimi_k2": NEIGHBOURS,  # DeepSeek-V3's class under another name
    "lara_mini": FamilyQuirks(full_layers_without_rope=True),
    "exaone4": FamilyQuirks(full_layers_without_rope=True),
    "exaone_moe": FamilyQuirks(full_layers_without_rope=True, sigmoid=True),
    "ernie4_5_moe": FamilyQuirks(interleaved=True, renormalize=True),
    "mimo_v2_flash": FamilyQuirks(sigmoid=True, derive=mimo_v2_flash),
    "step3p5": FamilyQuirks(
        norm=RMSNorm(unit_offset=True),
        sigmoid=True,
        derive=step3p5,
        renames=(
            (r"(.*\.)?moe\.gate_proj\.weight", r"\1moe.experts.mlp.w1"),
            (r"(.*\.)?moe\.up_proj\.weight", r"\1moe.experts.mlp.v1"),
            (r"(.*\.)?moe\.down_proj\.weight", r"\1moe.experts.mlp.w2"),
            (r"(.*\.)?moe\.router_bias", r"\1moe.gate.e_score_correction_bias"),
            (r"(.*\.)?share_expert\.(.*)", r"\1shared_expert.\2"),
        ),
    ),
    "naive_n05_flash": FamilyQuirks(norm=RMSNorm(), sigmoid=True, derive=naive_n05_flash),
    "solar_open2": FamilyQuirks(sigmoid=True, full_layers_without_rope=True, derive=solar_open2),
    "mimo_v2": FamilyQuirks(norm=RMSNorm(), sigmoid=True, fused_order="qkv_per_shard", derive=mimo_v2),
    "minimax_m2": FamilyQuirks(sigmoid=True, renormalize=True),
    "minimax_m3_vl_text": FamilyQuirks(norm=RMSNorm(unit_offset=True), sigmoid=True, renormalize=True),
    "hy_v3": FamilyQuirks(sigmoid=True, renormalize=True),
    "hy_v4": FamilyQuirks(
        sigmoid=True, clamps="experts", head_dim_replaced=True, index_rotates="last", index_eps_is_shared=True
    ),
    "inkling_text": FamilyQuirks(
        sigmoid=True,
        renormalize=True,
        derive=inkling,
        renames=((r"(.*\.)?attn_sconv\.(.*)", r"\1self_attn.output_sconv.\2"),),
    ),
    "nanbeige": FamilyQuirks(loops="num_loops", derive=nanbeige),
    "ouro": FamilyQuirks(loops="total_ut_steps", only=(("early_exit_step", None), ("use_sliding_window", False))),
    "openai-gpt": FamilyQuirks(activation=GELUTanh(), only=(("afn", "gelu"),)),  # the class calls it gelu
    "ctrl": FamilyQuirks(
        activation=ReLU(),
        scaled_embedding=True,
        added_position=Sinusoidal(interleaved=False),
        only=(("layer_norm_epsilon", 1e-6),),  # except in the last norm
    ),
    "xglm": FamilyQuirks(added_position=Sinusoidal(interleaved=False, offset=2), inclusive_waves=True),
    "biogpt": FamilyQuirks(eps=1e-5),
    "gpt_neo": FamilyQuirks(unscaled_scores=True),
    "roformer": FamilyQuirks(interleaved=True, rope=True, computed=r".*\.embed_positions\.weight"),
    "llama4_text": FamilyQuirks(
        sigmoid=True, weighs_inputs=True, interleaved=True, qk_norm=True, qk_norm_after_rope=True
    ),
    "recurrent_gemma": FamilyQuirks(norm=RMSNorm(unit_offset=True), derive=recurrent_gemma),
    "rwkv": FamilyQuirks(
        norm=LayerNorm(),
        only=(("layer_norm_epsilon", 1e-5),),  # except in the last norm
        renames=((r"rwkv\.blocks\.0\.pre_ln\.(.*)", r"embedding_norm.\1"), (r"head\.(.*)", r"lm_head.\1")),
    ),
    "xlstm": FamilyQuirks(norm=RMSNorm(), derive=xlstm),
    "nemotron": FamilyQuirks(norm=LayerNorm(unit_offset=True)),
    "nemotron_h": FamilyQuirks(norm=RMSNorm(), rope_when_named=True, sigmoid=True, steps_from_min=True),
    "olmo": FamilyQuirks(norm=LayerNorm(weight=False, bias=False), eps=1e-5),
    "muse_glimmer_text": FamilyQuirks(
        norm=RMSNorm(unit_offset=True), plain_final_norm=True, embedding_norm=True, qk_norm=True, derive=muse_glimmer
    ),
    "nanochat": FamilyQuirks(
        norm=RMSNorm(weight=False), embedding_norm=True, qk_norm=True, qk_norm_after_rope=True, reversed=True
    ),
    "gpt_neox_japanese": FamilyQuirks(only=(("rope_theta", None),), renames=((r"(.*)\.dense_bias", r"\1.dense.bias"),)),
    "modernbert-decoder": FamilyQuirks(
        norm=LayerNorm(),
        renames=(
            (r"attn\.Wo\.(.*)", r"attn.o_proj.\1"),
            (r"mlp\.Wi\.(.*)", r"mlp.gate_up_proj.\1"),
            (r"mlp\.Wo\.(.*)", r"mlp.down_proj.\1"),
        ),
        only=(("classifier_activation", "gelu"),),
        half_window=True,
    ),
    # `attention_scaling` of its class: (1 + (i + 1) / 2048)^0.1 at position i
    "beam": FamilyQuirks(sigmoid=True, scaled_residual=True, query_power=(0.1, 2048)),
    "deepseek_v4": FamilyQuirks(
        derive=deepseek_v4,
        asks=("layer_types",),
        clamps="all",
        renormalize=True,
        interleaved=True,
        renames=(
            (r"head\.(.*)", r"lm_head.\1"),
            (r"embed\.(.*)", r"embed_tokens.\1"),
            (r"(.*\.)?ffn\.gate\.bias", r"\1ffn.gate.e_score_correction_bias"),
        ),
    ),
    "dory": FamilyQuirks(
        norm=L2Norm(),
        eps=1e-6,
        qk_norm=True,
        output_norms=True,
        derive=dory,
        renames=(
            (r"(.*layers\.)(\d+)\.(mixer|attn_alpha|mlp_alpha)(.*)", _pair_of_layers),
            (r"lm_head\.logit_scale", "lm_head.gain.weight"),
            (r"self_attn\.sqk", "self_attn.query_gain.weight"),
            (r"self_attn\.s_gate", "self_attn.gate_gain.weight"),
            (r"mlp\.suv_(gate|up)", r"mlp.\1_gain.weight"),
            ("lambda_1", "mixer_rate"),
            ("lambda_2", "feedforward_rate"),
        ),
    ),
    "moshi": FamilyQuirks(
        derive=moshi,
        renames=((r"(.*_proj)\.linear\.(.*)", r"\1.\2"), (r"(.*\.mlp)\.fc1\.(.*)", r"\1.gate_up_proj.\2")),
    ),
    "bigbird_pegasus": FamilyQuirks(renames=((r"(.*)\.layernorm_embedding\.(.*)", r"\1.layer_norm.\2"),)),
}

# Parts that Archetype does not have, by the tensor names, keys or model types of models that need them.
MISSING_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r".*\.time_mix\w*(\..*)?", "the recurrence of RWKV"),
    (r".*\.(recurrent|qkv_conv\w*)(\..*)?", "a recurrent or state-space mixer of another kind"),
    (r".*\.mamba\.dt_proj_weight", "a Mamba with several heads"),
    (r".*\.attn_sink_proj\..*", "sinks that each position computes"),
    (r".*\.\w+_l2_clip\.scale", "a bound on the lengths of queries"),
    (r".*\.attn_res\.attn_queries\..*", "attention over depth apart for queries, keys and values"),
    (r".*\.[kv]_sconv\.weight_proj", "convolutions that each token computes"),
    (r".*\.\w+_cross_pass\w*", "messages between passes of a loop"),
    (r".*\.compressor\..*", "compressed keys and values"),
    (r".*\.(self_attn\.linear_attn|mlp\.linear_mlp)\.weight", "a single matrix in place of attention or a network"),
    (r".*\.self_attention\.experts\..*", "a mixture of attention heads"),
    (r".*\.ngram_embeddings\..*", "streams that predict the next n tokens"),
    (r".*\.relative_pos_embeddings\..*", "relative positions by projections"),
    (r"transformer\.lang_embeddings\..*", "embeddings of languages"),
    (r".*\.\w+_proj\.linears?\..*", "one projection per codebook"),
    (r".*\.(sqk|s_gate|suv_\w+)", "learned gains of queries, gates and hidden features (nGPT)"),
    (r"lm_head\.logit_scale", "a learned factor of each logit"),
    (r".*\.[HL]_module\..*", "two stacks that read each other's outputs in cycles"),
    (r"reformer\.encoder\..*", "reversible layers with two streams"),
    (r".*\.self_attention\.query_key\..*", "attention to keys with the same hash (LSH)"),
    (r".*\.mask_emb", "predictions in any order by a second stream (XLNet)"),
    (r"cpmant\..*", "segments of prompts with relative positions of their own"),
    (
        r".*\.indexer\.(?!(wq|wq_b|wk|weights_proj|[qk]_proj|index_qk_proj|[qk]_(layer)?norm)\.|index_kpool).*",
        "sparse attention by a learned index of another form",
    ),
    (r".*\.altup\..*", "streams, one of which is updated at a time (AltUp)"),
    (r".*\.laurel\..*", "a low-rank path beside attention (LAuReL)"),
    (r".*\.map_inputs_layer\..*", "embedding tables joined by a projection"),
    (r".*\.act_fn\..*", "an activation with parameters"),
    (r".*\.adapter_modules\..*", "one adapter per language"),
    (r".*\.self_attn\.(A|dt_proj\..*)", "attention scores with a number that each key's values give"),
    (r".*\.mlp\.(down|up)_embed\..*", "experts of one neuron, chosen by two keys"),
)
# The same for a tensor that was not recognized; elsewhere tensors of such names are recognized.
MISSING_BY_PLACE: tuple[tuple[str, str], ...] = (
    (r".*\.attn_sink", "attention sinks of another form"),
    (r".*\.(hc_\w+|attn_res)(\..*)?", "residual wirings whose tensors have other names"),
    (r".*\.self_attn\.[qkvo]_proj\.\w+", "two mixers side by side in a layer"),
    (r".*norm\w*\.(weight|bias)", "a norm where no wiring here has one"),
    (r".*\.(A_log|conv1d)(\..*)?", "a recurrent or state-space mixer of another kind"),
    (r".*\.conv\..*", "a convolution of another form"),
    (r".*\.experts\.\w+(\.weight|\.bias)?", "experts in one tensor of an unknown order"),
)
