"""The roles of tensors by their names in published files. Data, and one function."""

import re

Table = tuple[tuple[str, str], ...]

# Tensors that a decoder of text has no use for: what looks at a source, what sees or hears, and tables of numbers.
LEFT_OUT = re.compile(
    r".*\.(encoder_attn|encoder_attn_layer_norm|crossattention|cross_attn|pooler)\..*"
    r"|(.*\.)?(vision_tower|vision_model|vision_embed_tokens|visual|visual_projection|image_encoder|audio_tower|multi_modal_projector)\..*"
    r"|.*\.(rotary_emb\.inv_freq|position_ids)"
)
# Masks that older files keep, which have no axis or four.
MASK = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)")
# Of what has no use, tables of whole numbers, which every library makes for itself.
TABLES = re.compile(rf"{MASK.pattern}|(.*\.)?position_ids")

OUTER: Table = (
    (r"(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings|token_embedding|tokens_embed|"
     r"embeddings\.word_embeddings|w)", "embedding.token"),
    (r"(?:embed_positions|wpe|position_embeddings|positions_embed|position_embedding)", "embedding.position"),
    (r"token_type_embeddings", "embedding.token_type"),
    (r"(?:word_embeddings_layernorm|layernorm_embedding|embedding_norm|embeddings\.LayerNorm|embeddings\.norm|"
     r"embed_norm|emb_norm)", "embedding.norm"),
    (r"(?:predictions\.transform\.dense|predictions\.dense|lm_head\.dense|generator_predictions\.dense)",
     "lm_head.dense"),
    (r"(?:predictions\.transform\.LayerNorm|predictions\.LayerNorm|lm_head\.layer_norm|"
     r"generator_predictions\.LayerNorm)", "lm_head.norm"),
    (r"(?:encoder\.LayerNorm|encoder\.ln|roberta_prelayernorm\.LayerNorm|norm|ln_f|final_layernorm|final_layer_norm|"
     r"norm_f|final_norm|ln_out|layer_norm|layernorm)", "final_norm"),
    (r"(?:lm_head|predictions|generator_lm_head|embed_out|output|output_projection|predictions\.decoder|"
     r"lm_head\.decoder|decoder)", "lm_head"),
)  # fmt: skip

ATTENTION = (
    r"(?:\w+\.)*?(?:self_attn|self_attention|attention|attn|mha|mixer|multi_head_attention)\."
    r"(?:self\.|attention\.)?"
)
NETWORK = r"(?:(?:\w+\.)*?(?:mlp|feed_forward|ffn|feedforward|intermediate|output|block_sparse_moe|moe)\.)?"
MIXER: Table = (
    (rf"{ATTENTION}(?:q_norm|q_layernorm|query_layernorm|q_ln|query_norm)", "q_norm"),
    (rf"{ATTENTION}(?:k_norm|k_layernorm|key_layernorm|k_ln|key_norm)", "k_norm"),
    (rf"{ATTENTION}(?:q_proj|query|wq|Wq|q_lin|query_proj|q)", "q"),
    (rf"{ATTENTION}(?:k_proj|key|wk|Wk|k_lin|key_proj|k)", "k"),
    (rf"{ATTENTION}(?:v_proj|value|wv|Wv|v_lin|value_proj|v)", "v"),
    (rf"{ATTENTION}(?:qkv_proj|query_key_value|c_attn|Wqkv|qkv|W_pack|in_proj)", "qkv"),
    (rf"{ATTENTION}(?:o_proj|out_proj|dense|c_proj|wo|out_lin|out|o|output\.dense|linear_out)", "o"),
    (rf"{ATTENTION}(?:gate_proj|g_proj)", "gate"),
    # of latent attention
    (rf"{ATTENTION}q_a_proj", "q_down"),
    (rf"{ATTENTION}q_a_layernorm", "q_norm"),
    (rf"{ATTENTION}q_b_proj", "q_up"),
    (rf"{ATTENTION}kv_a_proj_with_mqa", "kv_down"),
    (rf"{ATTENTION}kv_a_layernorm", "kv_norm"),
    (rf"{ATTENTION}kv_b_proj", "kv_up"),
)
# Numbers without a `.weight` or `.bias`.
STATE = r"(?:\w+\.)*?(?:mamba|mixer|linear_attn)\."
PARAMETERS: Table = (
    (rf"{ATTENTION}(?:sinks|softmax_offset)", "sinks"),
    *((rf"{STATE}{name}", name) for name in ("A_log", "D", "dt_bias")),
)
# Of mixers that are no attention: what shows each (with the axes of that tensor), and what its tensors are.
SIGNS: tuple[tuple[str, int, str], ...] = (
    (r"linear_attn\.A_log", 1, "gated_delta_net"),
    (r"(?:mamba|mixer)\.A_log", 2, "mamba"),
    (r"(?:mamba|mixer)\.A_log", 1, "mamba2"),
    (r"conv\.conv\.weight", 3, "short_convolution"),
)
IN_AND_OUT: Table = ((rf"{STATE}in_proj", "in_proj"), (rf"{STATE}conv1d", "conv"), (rf"{STATE}out_proj", "out_proj"))
MIXERS: dict[str, Table] = {
    "attention": MIXER,
    "mamba": (
        *IN_AND_OUT, (rf"{STATE}x_proj", "x_proj"), (rf"{STATE}dt_proj", "dt_proj"),
        *((rf"{STATE}{name}_layernorm", f"{name}_norm") for name in ("dt", "b", "c")),
    ),
    "mamba2": (*IN_AND_OUT, (rf"{STATE}norm", "norm")),
    "gated_delta_net": (
        (rf"{STATE}in_proj_qkvz", "qkvz"), (rf"{STATE}in_proj_ba", "ba"), (rf"{STATE}in_proj_qkv", "qkv"),
        *((rf"{STATE}{name}_proj", name) for name in "qkvab"), (rf"{STATE}(?:in_proj_z|g_proj)", "gate"),
        (rf"{STATE}in_proj_a", "a"), (rf"{STATE}in_proj_b", "b"), (rf"{STATE}conv1d", "conv"),
        (rf"{STATE}o?_?norm", "norm"), (rf"{STATE}(?:out_proj|o_proj)", "o"),
    ),
    "short_convolution": tuple((rf"conv\.{name}", name) for name in ("in_proj", "conv", "out_proj")),
}  # fmt: skip
# Within a layer with experts, before what stands in NETWORKS.
EXPERTS: Table = (
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:gate_proj|w1)", "experts.gate"),
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:up_proj|w3)", "experts.up"),
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:down_proj|w2)", "experts.down"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.gate_proj", "shared.gate"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.up_proj", "shared.up"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.(?:down_proj|output_linear)", "shared.down"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.input_linear", "shared.gate_up"),
    (rf"{NETWORK}shared_expert_gate", "shared_gate"),
    (rf"{NETWORK}(?:input_linear|experts\.fc1)", "experts.gate_up"),
    (rf"{NETWORK}(?:output_linear|experts\.fc2)", "experts.down"),
    (rf"{NETWORK}(?:gate|router|router\.layer|router\.gate|gate\.wg)", "router"),
    # numbers without a `.weight` or `.bias`
    (rf"{NETWORK}experts\.gate_up_proj", "experts.gate_up.weight"),
    (rf"{NETWORK}experts\.down_proj", "experts.down.weight"),
    (rf"{NETWORK}(?:(?:gate|router|moe_statics|experts)\.)?(?:e_score_correction_bias|expert_bias)", "correction"),
)
SPARSE = re.compile(rf"{NETWORK}(?:experts\.(?:\d+\..*|fc1\..*|gate_up_proj)|input_linear\..*)")
NETWORKS: Table = (
    (rf"{NETWORK}(?:gate_up_proj|dense_h_to_8h)", "gate_up"),
    (rf"{NETWORK}(?:gate_proj|w1|wi_0|linear_gate|gate_linear)", "gate"),
    (rf"{NETWORK}(?:up_proj|w3|wi_1|c_fc|fc1|fc_in|dense_h_to_4h|lin1|linear_in|intermediate\.dense|0)", "up"),
    (rf"{NETWORK}(?:down_proj|w2|c_proj|fc2|fc_out|dense_4h_to_h|lin2|linear_out|output\.dense|2)", "down"),
    (r"intermediate\.dense", "up"),
    (r"output\.dense", "down"),
)

# Norms of a layer, by where they stand.
FIRST = ("attention.ln", "attention.self_attn_layer_norm", "attention.LayerNorm", "input_layernorm", "ln_1", "ln1",
         "attention_norm", "attn_norm", "norm_1", "norm1", "self_attn_layer_norm", "attention_layernorm", "ln_attn",
         "pre_attention_layernorm", "input_norm", "sa_layer_norm", "layernorm1", "operator_norm", "ln", "norm",
         "attention.output.LayerNorm")  # fmt: skip
SECOND = ("intermediate.LayerNorm", "post_attention_layernorm", "ln_2", "ln2", "ffn_norm", "norm_2", "norm2",
          "final_layer_norm", "mlp_norm", "feedforward_layernorm", "ln_mlp", "post_attention_norm",
          "output_layer_norm", "output.LayerNorm", "layernorm2", "LayerNorm", "ln")  # fmt: skip
BEFORE_NETWORK = ("pre_feedforward_layernorm", "pre_mlp_layernorm", "pre_ff_layernorm")
AFTER_NETWORK = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_ff_layernorm", "post_feedforward_norm",
                 "post_ffn_norm", "post_norm2")  # fmt: skip
AFTER_ATTENTION = ("post_self_attn_layernorm", "post_norm1", "post_attn_norm", "post_operator_norm",
                   "post_attention_layernorm")  # fmt: skip


def read_name(table: Table, path: str) -> tuple[str, int | None] | None:
    """Our name of what stands at a path, and which expert's it is; None where the table has none for it."""
    for pattern, param in table:
        if match := re.fullmatch(pattern, path):
            expert = match.groupdict().get("expert")
            return param, None if expert is None else int(expert)
    return None
