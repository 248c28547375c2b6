"""Roles of tensors outside mixers, given their names in published files."""

import re
from collections.abc import Iterable
from functools import lru_cache

from archetype.families.config import Config
from archetype.roles.checkpoint import NameTable

# Tensors that a text decoder does not use: cross-attention, image and audio parts, and constant tables.
LEFT_OUT = re.compile(
    r".*\.(encoder_attn|encoder_attn_layer_norm|crossattention|cross_attn|pooler)\..*"
    r"|(.*\.)?(vision_tower|vision_model|vision_embed_tokens|visual|visual_projection|image_encoder|audio_tower|embed_vision|embed_audio|audio_encoder|speech_embeddings|multi_modal_projector|mm_projector|patch_merge_mlp|connector|embed_tokens_extend)\..*"
    r"|.*\.lora_[AB]\.(vision|speech)\.weight"  # of Phi-4 multimodal, whose text has no adapter
    r"|.*\.(rotary_emb\.inv_freq|position_ids)"
    r"|.*\.layers\.0\.self_attention_res_(norm|proj)\.weight"  # the first mixer reads only the embedding (Kimi K3)
)
# Names of the part for text in files of several modalities.
TEXT_PARTS = ("language_model", "text_model")
HEADS = ("lm_head", "score", "classifier")  # of the text model, next to parts of other modalities
# Matrices of LongCat-Flash's experts, of which transformers writes some for experts that return their input.
EXPERT_MATRIX = re.compile(r".*\.mlp\.experts\.(\d+)\.(?:gate|up)_proj\.weight")
# Causal masks of older files, which are scalars or have four dimensions.
MASK = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)")
# Numbers of the hashes of an n-gram memory (Qwen4-Exp), which follow from the configuration.
HASHES = r"(?:.*\.)?ple\.ple_embedding\.(?:layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)"
# Integer tables that every library computes and no checkpoint needs.
TABLES = re.compile(rf"{MASK.pattern}|(.*\.)?position_ids|{HASHES}")

# Projections of keys and values and their norms, which files hold even for layers that never use them.
SHARED_KEYS = re.compile(r".*\.layers\.(\d+)\.self_attn\.[kv]_(?:proj|norm)\.\w+")

# Multi-token prediction: modules named mtp, or layers after the last one, each with a projection of a hidden vector and
# an embedding.
PREDICTION = re.compile(r"(?:.*\.)?mtp(?:_\w+)?\..*")
PREDICTION_LAYER = re.compile(r"(.*\.\d+\.)eh_proj\.weight")
# Layers that read images and pass texts on (Mllama), each with a gate of its cross-attention.
IMAGE_LAYER = re.compile(r"(.*\.\d+\.)cross_attn_attn_gate")

OUTER: NameTable = (
    (r"(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings|token_embedding|tokens_embed|"
     r"embeddings\.word_embeddings|w)", "embedding.token"),
    (r"(?:embed_positions|wpe|position_embeddings|positions_embed|position_embedding)", "embedding.position"),
    (r"token_type_embeddings", "embedding.token_type"),
    (r"(?:word_embeddings_layernorm|layernorm_embedding|embedding_norm|embeddings\.LayerNorm|embeddings\.norm|"
     r"embed_norm|emb_norm)", "embedding.norm"),
    (r"(?:predictions\.transform\.dense|predictions\.dense|lm_head\.dense|generator_predictions\.dense)",
     "lm_head.dense"),
    (r"(?:predictions\.transform\.LayerNorm|predictions\.LayerNorm|lm_head\.(?:layer_norm|norm)|"
     r"generator_predictions\.LayerNorm)", "lm_head.norm"),
    (r"(?:encoder\.LayerNorm|encoder\.ln|roberta_prelayernorm\.LayerNorm|norm|ln_f|final_layernorm|final_layer_norm|"
     r"norm_f|final_norm|ln_out|out_norm|layer_norm|layernorm)", "final_norm"),
    (r"(?:lm_head|predictions|generator_lm_head|embed_out|output|output_projection|predictions\.decoder|"
     r"lm_head\.decoder|decoder)", "lm_head"),
    (r"(?:project_in|encoder\.embedding_hidden_mapping_in)", "embedding.project"),
    (r"project_out", "lm_head.dense"),
    (r"early_exit_gate", "exit_gate"),
    (r"lm_head\.gain", "lm_head.gain"),
    (r"score", "classifier"),
    (r"embed_tokens_per_layer", "embedding.per_layer.token"),
    (r"per_layer_model_projection", "embedding.per_layer.projection"),
    (r"per_layer_projection_norm", "embedding.per_layer.norm"),
)  # fmt: skip

NETWORK = (
    r"(?:(?:\w+\.)*?(?:mlp|mlp_block|feed_forward|ffn|feedforward|intermediate|output|block_sparse_moe|moe|mixer)\.)?"
)
# In layers with experts these come before NETWORKS.
EXPERTS: NameTable = (
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:gate_proj|w1)", "experts.gate"),
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:up_proj|w3)", "experts.up"),
    (rf"{NETWORK}experts\.(?P<expert>\d+)\.(?:down_proj|w2)", "experts.down"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.(?:gate_proj|linear_gate|w1)", "shared.gate"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.(?:up_proj|w3)", "shared.up"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.(?:down_proj|output_linear|w2)", "shared.down"),
    (rf"{NETWORK}(?:shared_experts?|shared_mlp)\.(?:input_linear|gate_up_proj)", "shared.gate_up"),
    (rf"{NETWORK}shared_expert_gate", "shared_gate"),
    (rf"{NETWORK}(?:fc1_latent_proj|routed_expert_down_proj)", "latent_down"),
    (rf"{NETWORK}(?:fc2_latent_proj|routed_expert_up_proj)", "latent_up"),
    (rf"{NETWORK}routed_expert_norm", "latent_norm"),
    (rf"{NETWORK}(?:input_linear|experts\.fc1)", "experts.gate_up"),
    (rf"{NETWORK}(?:output_linear|experts\.fc2)", "experts.down"),
    (rf"{NETWORK}(?:gate|router|router\.layer|router\.gate|router\.proj|gate\.wg)", "router"),
    *((rf"{NETWORK}router_network\.{name}", f"router.{name}") for name in ("down", "norm", "fc1", "fc2", "out")),
    (rf"{NETWORK}router_network\.carry", "router.carry"),
    # tensors named without `.weight` or `.bias`
    (rf"{NETWORK}gate\.tid2eid", "router.table"),
    (r"router\.scale", "router.norm.weight"),
    (r"router\.per_expert_scale", "expert_scales"),
    (rf"{NETWORK}experts\.gate_up_proj", "experts.gate_up.weight"),
    (rf"{NETWORK}experts\.up_proj", "experts.up.weight"),
    (rf"{NETWORK}experts\.down_proj", "experts.down.weight"),
    (rf"{NETWORK}experts\.mlp\.w1", "experts.gate.weight"),
    (rf"{NETWORK}experts\.mlp\.v1", "experts.up.weight"),
    (rf"{NETWORK}experts\.mlp\.w2", "experts.down.weight"),
    (rf"{NETWORK}(?:(?:gate|router|moe_statics|experts)\.)?(?:e_score_correction_bias|expert_bias)", "correction"),
)
# Experts that every token selects and the router weighs (Inkling): stacked, and named without `.weight`.
ALWAYS: NameTable = tuple(
    (rf"{NETWORK}shared_experts\.{name}_proj", f"always.{name}.weight") for name in ("gate", "up", "down")
)
SPARSE = re.compile(rf"{NETWORK}(?:experts\.(?:\d+\..*|fc1\..*|gate_up_proj|up_proj|mlp\.w1)|input_linear\..*)")
NETWORKS: NameTable = (
    (rf"{NETWORK}(?:gate_up_proj|dense_h_to_8h)", "gate_up"),
    (rf"{NETWORK}(?:gate_proj|proj_up_gate|w1|wi_0|c_fc_0|linear_gate|gate_linear)", "gate"),
    (rf"{NETWORK}(?:up_proj|w3|wi_1|c_fc(?:_1)?|fc1|fc_in|dense_h_to_4h|lin1|linear_in|intermediate\.dense|0)", "up"),
    (rf"{NETWORK}proj_up", "up"),
    (rf"{NETWORK}(?:down_proj|proj_down|w2|c_proj|fc2|fc_out|dense_4h_to_h|lin2|linear_out|output\.dense|2)", "down"),
    (rf"{NETWORK}ffn_sub_norm", "hidden_norm"),
    *((rf"{NETWORK}{name}_gain", f"{name}_gain") for name in ("gate", "up")),
    *((rf"feed_forward\.{theirs}", ours) for theirs, ours in (("key", "up"), ("value", "down"))),  # of RWKV
    (r"feed_forward\.receptance", "receptance"),
    (r"intermediate\.dense", "up"),
    (r"output\.dense", "down"),
)
# Numbers of a network, named without `.weight` or `.bias`.
NUMBERS: NameTable = (
    *((rf"{NETWORK}act_fn\.{name}", f"activation.{name}") for name in ("alpha_p", "alpha_n", "beta", "eps")),  # xIELU
    (r"feed_forward\.time_mix_key", "mix"),
    (r"feed_forward\.time_mix_receptance", "mix_receptance"),
)

# Weights of residual streams, named without `.weight` or `.bias` (Hy4, DeepSeek-V4): of a layer's sublayers, and of the
# last sum.
STREAMS: NameTable = tuple(
    (pattern, f"{ours}_residual.weights.{param}")
    for content, second, ours in (("attn", "attn", "mixer"), ("mlp", "ffn", "feedforward"))
    for name, param in (("fn", "weight"), ("base", "bias"), ("scale", "scale"))
    for pattern in (rf"hc_pre\.hc_{content}_layer\.hc_{name}", f"hc_{second}_{name}")
)
# The same with gates (Qwen4-Exp).
GATED_STREAMS = (
    ("hc_norm\\.weight", "norm_weight"),
    ("input_mix_weight_down\\.weight", "gate_down.weight"),
    ("input_mix_weight_up\\.weight", "gate_up.weight"),
)
STREAMS += tuple(
    (rf"{content}_hyper_connection\.{theirs}", f"{ours}_residual.{param}")
    for content, ours in (("attn", "mixer"), ("mlp", "feedforward"))
    for theirs, param in (
        *((theirs, f"gates.{param}") for theirs, param in GATED_STREAMS),
        ("block_inject_weight\\.weight", "write_weights.weight"),
    )
)
STREAMS += tuple((f"{content}_rate", f"{content}_rate") for content in ("mixer", "feedforward"))  # of nGPT's steps
# Norms and factors of both terms of a residual sum.
STREAMS += tuple(
    (name, name)
    for content in ("mixer", "feedforward")
    for term in ("carried", "added")
    for kind in ("weight", "bias")
    for name in (f"{content}_residual.{term}.{kind}",)
)
# Attention over depth (Kimi K3): weights of the norm and the query of each sublayer, and of the stack's end.
DEPTH = (("norm", "norm_weight"), ("proj", "query"))
STREAMS += tuple(
    (rf"{content}_res_{theirs}\.weight", f"{ours}_residual.attend.{param}")
    for content, ours in (("self_attention", "mixer"), ("mlp", "feedforward"))
    for theirs, param in DEPTH
)
# Alternating updates of a layer, and its path beside the mixer (Gemma 3n).
STREAMS += tuple(
    (rf"{theirs}\.weight", f"{ours}.weight")
    for theirs, ours in (
        (r"altup\.modality_router", "residual.router"),
        (r"altup\.router_norm", "residual.norm"),
        (r"altup\.prediction_coefs", "residual.prediction"),
        (r"altup\.correction_coefs", "residual.correction"),
        (r"laurel\.linear_left", "mixer_path.left"),
        (r"laurel\.linear_right", "mixer_path.right"),
        (r"laurel\.post_laurel_norm", "mixer_path.norm"),
    )
)
# Of the stack's ends; `{}` stands for the number of a stream.
STREAMS_ENDS: NameTable = (
    (r"altup_projections\.(?P<expert>\d+)\.weight", "residual_entry.projections.{}.weight"),
    (r"altup_unembed_projections\.(?P<expert>\d+)\.weight", "residual_exit.projections.{}.weight"),
    *((rf"output_attn_res_{theirs}\.weight", f"residual_exit.{param}") for theirs, param in DEPTH),
    *((rf"hyper_connection_mixer\.{theirs}", f"residual_exit.{param}") for theirs, param in GATED_STREAMS),
    *(
        (rf"hc_pre\.hc_head\.hc_head_{name}|hc_head\.hc_{name}|hc_head_{name}", f"residual_exit.{param}")
        for name, param in (("fn", "weight"), ("base", "bias"), ("scale", "scale"))
    ),
)

# An n-gram memory before a layer's mixer (Qwen4-Exp), whose table may be cut into numbered parts.
MEMORY: NameTable = (
    (r"ple\.ple_embedding\.ngram_embedding\.(?:shard_(?P<expert>\d+)\.)?weight", "table"),
    *((rf"ple\.{part}_proj\.weight", f"{part}.weight") for part in ("key", "value")),
    *((rf"ple\.norm_{part}\.weight", f"{part}_norm.weight") for part in ("key", "query", "conv")),
    (r"ple\.conv1d\.weight", "conv.weight"),
)

# Tables by n-grams and their projections (LongCat-Flash-Lite).
NGRAMS: NameTable = (
    (r"ngram_embeddings\.embedders\.(?P<expert>\d+)", "table"),
    (r"ngram_embeddings\.post_projs\.(?P<expert>\d+)", "projections"),
)

# Tensors of a layer that follow its network: per-layer inputs (Gemma 3n), the adapter of a language (X-MOD), and a
# factor of the layer's output (Gemma 4).
FURTHER: NameTable = (
    (r"per_layer_input_gate", "feedforward.gate"),
    (r"per_layer_projection", "feedforward.down"),
    *((rf"per_layer_{norm}", f"feedforward.{norm}") for norm in ("input_norm", "added_norm")),  # with streams
    (r"post_per_layer_input_norm", "feedforward_norm"),
    (r"output\.adapter_modules\.\w+\.dense1", "feedforward.up"),
    (r"output\.adapter_modules\.\w+\.dense2", "feedforward.down"),
)
# Adapters after the layer's network, one per language (X-MOD), and the norm after both.
ADAPTER = re.compile(r".*\.adapter_modules\.(\w+)\..*")
ADAPTER_NORM = "output.LayerNorm"
OUTPUT_SCALE = "layer_scalar"
# Of the whole network or all experts of a layer (Inkling): a factor of the output, and a convolution behind it.
BEHIND: NameTable = (
    (r"mlp\.(?:gate\.)?global_scale", "scales"),
    (r"mlp_sconv\.conv1d\.weight", "convolutions.output.weight"),
)
# Norms of a network and of the experts parallel to it, by their names below `feedforward` (Gemma 4).
BESIDE_EXPERTS = {
    "pre_feedforward_layernorm.weight": "norms.0.weight",
    "pre_feedforward_layernorm_2.weight": "parts.1.norm.weight",
    "post_feedforward_layernorm_1.weight": "post_norms.0.weight",
    "post_feedforward_layernorm_2.weight": "post_norms.1.weight",
}

# Norms with a gate of low rank (A.X K2): names below the norm, and ours.
GATED_NORM = re.compile(r"(\w*norm)\.(norm|W_down|W_up)")
OF_GATED_NORM = {"norm": "", "W_down": "gate_down.", "W_up": "gate_up."}

# Names of a layer's norms, by position in the layer.
FIRST = ("attention.ln", "attention.self_attn_layer_norm", "attention.LayerNorm", "input_layernorm", "ln_1", "ln1",
         "attention_norm", "attn_norm", "norm_1", "norm1", "self_attn_layer_norm", "attention_layernorm", "ln_attn",
         "pre_attention_layernorm", "input_norm", "sa_layer_norm", "layernorm1", "operator_norm", "ln", "norm",
         "attention.output.LayerNorm", "attention_layer_norm", "temporal_pre_norm", "norm_mlstm")  # fmt: skip
SECOND = ("intermediate.LayerNorm", "post_attention_layernorm", "ln_2", "ln2", "ffn_norm", "norm_2", "norm2",
          "final_layer_norm", "mlp_norm", "feedforward_layernorm", "ln_mlp", "post_attention_norm",
          "output_layer_norm", "output.LayerNorm", "layernorm2", "LayerNorm", "ln",
          "feedforward_layer_norm", "norm_ffn")  # fmt: skip
BEFORE_NETWORK = ("pre_feedforward_layernorm", "pre_mlp_layernorm", "pre_ff_layernorm", "channel_pre_norm")
AFTER_NETWORK = (
    "post_feedforward_layernorm",
    "post_mlp_layernorm",
    "post_ff_layernorm",
    "post_feedforward_norm",
    "post_ffn_norm",
    "post_norm2",
)
AFTER_ATTENTION = (
    "post_self_attn_layernorm",
    "post_norm1",
    "post_attn_norm",
    "post_operator_norm",
    "post_attention_layernorm",
    "feedforward_layer_norm",  # the name under which transformers writes OLMo-Hybrid's post_attention_layernorm
)


@lru_cache(2**16)  # all layers have the same paths: about a thousand with hundreds of experts
def read_name(table: NameTable, path: str) -> tuple[str, int | None] | None:
    """Return Archetype's name for a path, and the index of the expert if there is one; None if no pattern matches."""
    for pattern, param in table:
        if match := re.fullmatch(pattern, path):
            expert = match.groupdict().get("expert")
            return param, None if expert is None else int(expert)
    return None


def is_of_shared_keys(name: str, config: Config) -> bool:
    """Return whether a tensor computes keys or values of a layer that reads those of another (Gemma 3n, Gemma 4)."""
    if not config.values.get("num_kv_shared_layers") or (match := SHARED_KEYS.fullmatch(name)) is None:
        return False
    return int(match[1]) >= config.size("num_hidden_layers") - config.size("num_kv_shared_layers")


def is_unused_scale(name: str, config: Config) -> bool:
    """Return whether a tensor would scale the input of a per-layer input, but the class ignores it (Gemma 3n)."""
    return name.endswith(".altup.correct_output_scale") and not config.flag("altup_correct_scale", True)


def is_of_idle_expert(name: str, config: Config) -> bool:
    """Return whether a tensor belongs to an expert that returns its input (LongCat-Flash)."""
    if not config.values.get("zero_expert_num") or (match := EXPERT_MATRIX.fullmatch(name)) is None:
        return False
    return int(match[1]) >= config.size("n_routed_experts")


def is_of_other_language(name: str, config: Config) -> bool:
    """Return whether a tensor belongs to the adapter of a language other than the default (X-MOD)."""
    if (match := ADAPTER.fullmatch(name)) is None:
        return False
    language, languages = config.get("default_language"), config.get("languages") or []
    if language not in languages:
        cause = f"{language!r} is not one of the file's languages ({', '.join(map(str, languages)) or 'none'})"
        raise config.error("default_language", cause, "set it to the language of your texts")
    return bool(match[1] != language)


def prediction_tensors(names: Iterable[str]) -> list[str]:
    """Return the names of the tensors used for multi-token prediction."""
    names = list(names)
    layers = _layers_with(names, PREDICTION_LAYER)
    return [name for name in names if PREDICTION.fullmatch(name) or name.startswith(layers)]


def image_tensors(names: Iterable[str]) -> list[str]:
    """Return the names of the tensors of layers that only read images."""
    names = list(names)
    layers = _layers_with(names, IMAGE_LAYER)
    return [name for name in names if name.startswith(layers)]


def _layers_with(names: list[str], sign: re.Pattern[str]) -> tuple[str, ...]:
    # prefixes of the layers that have a tensor of this name
    return tuple(match[1] for name in names if (match := sign.fullmatch(name)))
