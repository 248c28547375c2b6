"""Keys of single model types under the usual names."""

import math
from typing import Any

from archetype.families.config import Config
from archetype.families.rope import FRACTION, rotary_section

# Kinds of DeepSeek-V4's layers by the positions of a pooled key, in its older files.
COMPRESSED = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}

# Sizes of dots 3's layers with windows, which older files have under names that start with `swa_`.
DOTS3_SIZES = (
    *("num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "head_dim", "qk_nope_head_dim"),
    *("v_head_dim", "qk_rope_head_dim"),
)


def mimo_v2_flash(keys: Config) -> dict[str, Any]:
    """Derive keys as MiMo-V2-Flash's class does: defaults, and the window, which excludes the query's own position."""
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
    """Translate the keys of MiMo-V2.5 and V2.6 to the usual names."""
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


def dots3(keys: Config) -> dict[str, Any]:
    """Return the kinds, heads and rotations of dots 3's layers as its class reads older files; shapes show the rest."""
    kinds, windowed, is_old = keys.get("layer_types"), "sliding_attention", "per_layer_config" not in keys.values
    indexed = keys.get("use_dsa", True if is_old else None)
    whole = "full_attention" if indexed is False else "indexed_attention"
    if kinds is None:
        has_windows, count = keys.flag("use_sliding_window", True), keys.size("num_hidden_layers")
        kinds = [windowed if has_windows and i > 1 and i % 4 != 1 else whole for i in range(count)]
    elif indexed is not None and isinstance(kinds, list):
        kinds = [whole if kind in ("full_attention", "indexed_attention") else kind for kind in kinds]
    window, heads = keys.get("sliding_window"), keys.size("num_attention_heads")
    derived = {"layer_types": kinds, "sliding_window": keys.get("sliding_window_size") if window is None else window}
    keys.used |= {"swa_rope_theta", *(f"swa_{name}" for name in DOTS3_SIZES)}
    if is_old and isinstance(kinds, list):
        of_windows = keys.size("swa_num_attention_heads", 64)
        derived["num_attention_heads"] = [of_windows if kind == windowed else heads for kind in kinds]
    sections, thetas = keys.get("rope_parameters"), {windowed: "swa_rope_theta", whole: "rope_theta"}
    if not sections and not keys.get("rope_scaling"):
        sections = {kind: {"rope_type": "default", "rope_theta": keys.get(key)} for kind, key in thetas.items()}
    if isinstance(sections, dict):  # the class computes which share of a head rotates, whatever a file says
        derived["rope_parameters"] = {
            kind: {key: value for key, value in section.items() if key != FRACTION}
            if isinstance(section, dict)
            else section
            for kind, section in sections.items()
            if kind != FRACTION
        }
    return derived | {FRACTION: None, "use_sliding_window": True}  # which counts only without `layer_types`


def step3p5(keys: Config) -> dict[str, Any]:
    """Translate Step 3.5's keys to the usual names. Its lists include the multi-token prediction layers."""
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
    # transformers' defaults for a file that lacks these
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
    """Return Nanbeige 4.2's number of passes, and refuse settings that its published models do not use."""
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
    """Translate DBRX's sections for attention and experts to the usual names."""
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
    """Translate XLM's keys to the usual names, and refuse its encoders."""
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
    """Derive layer types and their rotary settings from DeepSeek-V4's older keys, as its class does."""
    count, ratios, kinds = keys.get("num_hidden_layers") or 0, keys.get("compress_ratios"), keys.get("layer_types")
    if kinds is None and isinstance(ratios, list):
        kinds = [COMPRESSED.get(ratio) for ratio in ratios[:count]]
    keys.used |= {"compress_ratios", "compress_rope_theta", "num_hash_layers", "expert_dtype"}
    section, head_dim, share = rotary_section(keys), keys.size("head_dim", 512), keys.optional_positive(FRACTION)
    stated = {} if section is None else section.values
    main, pooled = stated.get("main"), stated.get("compress")
    if isinstance(main, dict) and isinstance(pooled, dict):
        shares = [Config(one, keys.place).positive(FRACTION, share or 1.0) for one in (main, pooled)]
        if shares[0] != shares[1]:
            cause = f"rotates {shares[0]} of a head in some layers and {shares[1]} in others"
            raise keys.error("rope_parameters", cause, f"use one {FRACTION}")
        share = shares[0]
    else:
        flat = {key: value for key, value in stated.items() if key not in ("main", "compress")}
        main = {"rope_type": "default", "rope_theta": keys.get("rope_theta", 10_000.0)}
        pooled = {**flat, "rope_theta": keys.get("compress_rope_theta", 160_000.0)}
        pooled["rope_type"] = pooled.pop("type", pooled.get("rope_type", "default"))
        if pooled["rope_type"] == "yarn":
            pooled.setdefault("attention_factor", 1.0)
    if "proportional" in (main.get("rope_type"), pooled.get("rope_type")):
        raise keys.error("rope_parameters", "'proportional' scaling is not supported here", "use another model")
    share = share or keys.size("qk_rope_head_dim", head_dim // 8) / head_dim
    sections = {kind: pooled if ratio else main for ratio, kind in COMPRESSED.items()}
    unshared = {kind: {k: v for k, v in one.items() if k != FRACTION} for kind, one in sections.items()}
    return {
        "layer_types": kinds,
        "rope_parameters": unshared,
        "rope_scaling": None,
        FRACTION: None,
        "qk_rope_head_dim": int(head_dim * share),
    }


def cohere2_moe(keys: Config) -> dict[str, Any]:
    """Return the epsilon of Cohere's experts: with `rms_norm_eps` the norms are RMSNorm, and no other key counts."""
    return {} if keys.get("rms_norm_eps") is None else {"layer_norm_eps": None}


def bailing_hybrid(keys: Config) -> dict[str, Any]:
    """Return the rotary settings of Ling 3's class, which ignores a length named `model_max_length`."""
    section = rotary_section(keys)
    if section is None or section.values.get("rope_type", section.values.get("type", "default")) == "default":
        return {}
    original = {"original_max_position_embeddings": keys.size("max_position_embeddings")}
    return {"rope_parameters": original | section.values, "rope_scaling": None}


def modernbert_decoder(keys: Config) -> dict[str, Any]:
    """Return the rotary settings by layer type, which older files store outside `rope_parameters`."""
    stated, scaling = keys.section("rope_parameters") or Config({}), keys.section("rope_scaling") or Config({})
    thetas = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
    sections = {
        kind: {"rope_type": "default", "rope_theta": keys.positive(*theta)} | (stated.get(kind) or {}) | scaling.values
        for kind, theta in thetas.items()
    }
    return {"rope_parameters": sections, "rope_scaling": None, "rope_theta": None}


def longcat_flash(keys: Config) -> dict[str, Any]:
    """Return the scoring function of LongCat-Flash's router, which its class hard-codes."""
    keys.expect("head_dim", keys.get("qk_rope_head_dim"), "the class rotates this number of features")
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


def gemma4(keys: Config) -> dict[str, Any]:
    """Return Gemma 4's keys as its class reads them: full attention last, and whole heads rotated without scaling."""
    kinds, sections = keys.get("layer_types"), keys.get("rope_parameters")
    derived = {"hidden_act": keys.get("hidden_activation")}  # the other key is that of its encoders
    if isinstance(kinds, list):
        derived["layer_types"] = [*kinds[:-1], "full_attention"]
    if isinstance(sections, dict):
        derived["rope_parameters"] = {
            kind: section | {"partial_rotary_factor": 1.0}
            if isinstance(section, dict) and section.get("rope_type", "default") == "default"
            else section
            for kind, section in sections.items()
        }
    return derived


def gemma3n(keys: Config) -> dict[str, Any]:
    """Return Gemma 3n's keys as its class derives them: kinds of layers, their rotations, and shares of zero gates."""
    count = keys.get("num_hidden_layers") or 0
    kinds = keys.get("layer_types") or [
        "sliding_attention" if (layer + 1) % 5 else "full_attention" for layer in range(count)
    ]
    shares, num_sparse = keys.get("activation_sparsity_pattern"), 10 if count > 10 else 0
    stated = keys.get("rope_parameters") or {}
    usual = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
    sections = {
        kind: {"rope_type": "default", "rope_theta": keys.positive(*theta)} | (stated.get(kind) or {})
        for kind, theta in usual.items()
    }
    sections["full_attention"] |= keys.get("rope_scaling") or {}
    return {
        "hidden_act": keys.get("hidden_activation"),  # the other key is that of its encoders
        "layer_types": kinds,
        "activation_sparsity_pattern": [0.95] * num_sparse + [0.0] * (count - num_sparse) if shares is None else shares,
        "rope_parameters": sections,
        "rope_scaling": None,
        "rope_theta": None,
        "rope_local_base_freq": None,
    }


def doge(keys: Config) -> dict[str, Any]:
    """Refuse Doge models with experts, which are routed across tokens, or with keys left out of attention."""
    keys.expect("is_moe", False, "a router that mixes the logits of different tokens")
    window, context = keys.get("keep_window_size"), keys.get("max_position_embeddings")
    if isinstance(window, int) and isinstance(context, int) and window < context:
        cause = f"each query would attend to {window} of up to {context} keys, which is not supported"
        raise keys.error("keep_window_size", cause, "set max_position_embeddings to it")
    return {}


def _refuse_window_of_cache(keys: Config) -> None:
    # classes that apply a window only to cached keys
    window, context = keys.get("sliding_window"), keys.get("max_position_embeddings")
    if isinstance(window, int) and isinstance(context, int) and window < context:
        cause = f"{window} keys are seen with a cache, and all {context} without one"
        raise keys.error("sliding_window", cause, "set it to max_position_embeddings")


def hrm_text(keys: Config) -> dict[str, Any]:
    """Accept HRM's keys about gradients and token types; without token types, its class is causal."""
    _refuse_window_of_cache(keys)
    keys.used |= {"L_bp_cycles", "prefix_lm"}
    return {}


def moshi(keys: Config) -> dict[str, Any]:
    """Refuse a window that has no mask, and accept the keys of sound."""
    _refuse_window_of_cache(keys)
    keys.used |= {"num_codebooks", "codebook_size", "depth_decoder_config"}  # of sound
    return {}


def recurrent_gemma(keys: Config) -> dict[str, Any]:
    """Return RecurrentGemma's keys under the usual names, and sqrt(d_model) as its class rounds it, to bfloat16."""
    fraction, exponent = math.frexp(keys.size("hidden_size") ** 0.5)
    window = keys.size("attention_window_size")
    keys.expect("sliding_window", window, "it is another name of attention_window_size")
    return {
        "sliding_window": window,
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
