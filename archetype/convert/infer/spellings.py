"""Spellings of keys in published configurations, in the order in which they are tried: the most common first."""

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
    r"(adapter_reduction_factor|topk_method|scoring_func|enable_moe_fp32_combine|use_sliding_window|num_nextn_predict_layers)",
    r".*_token_(id|index)",
    # sizes of mixers, which their tensors show
    r"(linear_attn_config|full_attn_layers|kda_layers|short_conv_kernel_size|lru_width|conv1d_width)",
    r"(linear_(conv|key|value|num_value|num_heads|head_dim|a_log|dt).*|mamba_d_.*|mamba_dt_rank|mamba_expand|mamba_n(um)?_heads|mamba_head_dim|(ssm_)?state_size|conv_kernel.*)",
    r"(use_associative_scan|use_mamba_kernels|use_mambapy|(expert|attn)_layer_(offset|period)|attn_layer_indices)",
    r"(time_step_(rank|min|max|floor)|hybrid_layer_ids|num_dense_layers|max_target_positions)",
    r"(moe_latent_size|routed_expert_hidden_size|latent_moe_use_norm|mla_use_output_gate|interleave_moe_layer_step)",
    r"(global_head_dim|num_kv_shared_layers|hidden_size_per_layer_input|use_double_wide_mlp|enable_moe_block)",
    r"altup_coef_clip",  # of weights in training
    r"gating",  # whether a gate is of a head or of a feature, which its shape shows
    r"rescale_every",  # halves the stream and what is added to it in passes without gradients, for 16 bits
    r"(layers_block_type|block_types|hybrid_override_pattern|full_attn_idxs|mtp_.*)",  # kinds of layers, or left out
)
# Keys of parts that some models lack.
OF_ATTENTION = r".*(head|rope|attention|window|layer_types).*"
OF_EXPERTS = r".*(expert|moe|topk|routed|router|n_group).*"
