"""Reduction of a published config.json to small sizes with all keys kept, so that a model is built in seconds."""

import copy
from typing import Any

from archetype.convert.infer.spellings import OVERRIDES
from archetype.io.low_bit.settings import without_settings

MOST = 7_000_000  # parameters; a larger model has a size that is not in SIZES
WIDTH = (
    "hidden_size n_embd d_model embed_dim dim model_dim embedding_size word_embed_proj_dim input_embedding_size "
    "output_embedding_size embedding_dim"
)
# Small values for sizes, by the names that configurations use.
SIZES: dict[str, int] = {
    key: value
    for value, keys in (
        (61, "vocab_size unpadded_vocab_size vocab_size_per_layer_input ngram_vocab_size_base"),
        (32, f"{WIDTH} mm_embed_dim output_proj_dims"),
        (
            48,
            "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner ffn_hidden_size d_ff inner_dim d_inner "
            "dff",
        ),
        (2, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers"),
        (2, "num_blocks num_encoder_layers num_key_value_heads num_kv_heads kv_n_heads num_experts_per_tok depth"),
        (2, "top_k_experts moe_topk n_recurrent_layers num_layers_per_stack"),
        (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"),
        (4, "num_experts num_local_experts n_routed_experts rotary_dim qk_rope_head_dim"),
        (4, "state_size ssm_state_size mamba_d_state mamba_n_heads mamba_num_heads"),
        (8, "head_dim sliding_window qk_nope_head_dim v_head_dim index_head_dim hidden_size_per_layer_input"),
        # of layers with windows, whose heads are as wide as the others'
        (4, "swa_num_attention_heads"),
        (2, "swa_num_key_value_heads"),
        (8, "swa_head_dim"),
        (5, "index_topk"),  # fewer than the tokens of the comparison
        (2, "index_kpool indexer_compress_ratio split_ngram_parts"),
        (8, "indexer_head_dim hc_lowrank"),
        (6, "indexer_budget"),
        (32, "ple_embed_dim"),
        (3, "index_block_size zero_expert_num"),
        (2, "index_topk_blocks"),  # blocks: fewer than the tokens of the comparison, too
        # with few heads, keys without a relevant head tie at 0, and any of them may be selected
        (16, "index_n_heads indexer_n_heads"),
        (16, "global_head_dim moe_intermediate_size shared_expert_intermediate_size mamba_d_head mamba_head_dim"),
        (16, "expert_ffn_hidden_size"),
        (64, "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions"),
        (12, "q_lora_rank router_hidden_size"),
        (10, "kv_lora_rank"),
        (1, "n_group topk_group first_k_dense_replace bos_token_id num_global_key_value_heads"),
        (0, "pad_token_id max_window_layers n_input_layers n_output_layers"),
        (32, "image_size"),
        (8, "patch_size mm_posemb_size"),
        (24, "model_patch_size"),  # of three times three patches
        (2, "eos_token_id"),
    )
    for key in keys.split()
}
# The same in a section of sizes of an index of blocks (MiniMax M3), and its list with an entry for each layer.
BLOCK_SPARSE, BLOCK_SPARSE_LAYERS = "sparse_attention_config", "sparse_attention_freq"
BLOCK_SIZES = {"sparse_index_dim": 8, "sparse_block_size": 3, "sparse_topk_blocks": 2}
# For latent attention some configurations use head_dim for the rotated part of a head.
LATENT: dict[str, Any] = {"head_dim": 4, "num_key_value_heads": 4}
PARTS = ("qk_nope_head_dim", "qk_rope_head_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
# Not sizes of tensors, except of position tables.
KEPT = {"max_position_embeddings", "max_seq_len", "bos_token_id", "eos_token_id", "pad_token_id", "sliding_window"}
LEFT_OUT = ("dtype", "torch_dtype", "auto_map", "_name_or_path")
OF_MODELS = {"hidden_size", "ffn_hidden_size", "kv_n_heads", "mm_embed_dim"}  # one of which each part of a model has
STEP, STORED = "ngpt_alpha_init", "initializer_range"  # of nGPT's steps, and what learned factors are divided by
PER_LAYER_IDS = "vocab_size_per_layer_input"
MEMORY_LAYERS = "ple_layer_ids"  # of n-gram memories (Qwen4-Exp), counted from 1
KINDS = 4  # of layers, at most; a list with more different entries has sizes
SHARED = "num_kv_shared_layers"  # number of the last layers, which read the keys of earlier ones
ROPE, FACTORS = ("rope_scaling", "rope_parameters"), ("short_factor", "long_factor")  # of each rotated pair


def make_small(values: dict[str, Any], fitting: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a config.json for a model with a few thousand parameters.

    Args:
        fitting: sizes that replace the usual small sizes, by model type.
    """
    fitting, values = fitting or {}, without_settings(copy.deepcopy(values))
    return _cut(values, fitting) | {key: _cut(value, fitting) for key, value in values.items() if _is_model(value)}


def with_sizes(values: dict[str, Any], config: Any) -> dict[str, Any]:
    """Add small values for sizes that are defaults of the transformers class.

    Args:
        values: keys of a config.json with small sizes.
        config: configuration that the class builds from `values`.
    """
    inner = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    sections = {name: with_sizes(values.get(name) or {}, part) for name, part in inner.items() if part is not None}
    sizes = {key: size for key, size in SIZES.items() if key not in {*values, *KEPT} and _has_size(config, key)}
    return values | sizes | sections


def _has_size(config: Any, key: str) -> bool:
    try:
        value = getattr(config, key, None)
    except ValueError:  # the size differs between layers
        return False
    is_computed = isinstance(getattr(type(config), key, None), property)
    return isinstance(value, int) and not isinstance(value, bool) and not is_computed


def _is_model(value: Any) -> bool:
    # DBRX has sections for its attention and its experts
    return isinstance(value, dict) and not OF_MODELS.isdisjoint(value)


def _cut(values: dict[str, Any], fitting: dict[str, dict[str, Any]]) -> dict[str, Any]:
    special = fitting.get(str(values.get("model_type")), {})
    layers = next((values[key] for key in LAYERS if isinstance(values.get(key), int)), None)
    sizes = {key: value for key, value in SIZES.items() if values.get(key) is not None and key not in KEPT}
    small = {key: value for key, value in values.items() if key not in LEFT_OUT} | sizes
    small |= _ratios(values, small)
    small |= {key: value for key, value in special.items() if value is not None}
    layer_indices = _layers(values, layers)
    if values.get(SHARED) and layers:  # each kind of layer with its own keys, then one that reads those of the last
        layer_indices = (*layer_indices, layer_indices[-1])
        small[SHARED] = 1
    if layers:
        small |= {key: len(layer_indices) for key in LAYERS if values.get(key) == layers and key not in special}
    if isinstance(overrides := values.get(OVERRIDES), dict):
        picked = [(str(new), overrides.get(str(old))) for new, old in enumerate(layer_indices)]
        small[OVERRIDES] = {new: _small_override(values, small, own) for new, own in picked if isinstance(own, dict)}
    for key, value in values.items():
        if isinstance(value, list) and len(value) == layers and key not in special:
            small[key] = [value[min(layer, len(value) - 1)] for layer in layer_indices]
    if values.get(STEP) is not None:
        small[STORED] = 0.3  # as large as random numbers: with less, learned factors are in the thousands
    if values.get(MEMORY_LAYERS):
        small[MEMORY_LAYERS] = [1]
    for key in ROPE:
        if isinstance(section := values.get(key), dict):
            width = small.get("qk_rope_head_dim") or small.get("head_dim") or SIZES["hidden_size"] // SIZES["n_head"]
            small[key] = {
                name: value[: width // 2] if name in FACTORS and isinstance(value, list) else value
                for name, value in section.items()
            }
    if isinstance(section := values.get(BLOCK_SPARSE), dict):
        heads = {"sparse_num_index_heads": small.get("num_key_value_heads", 1)}  # one for each key head
        sizes = {key: value for key, value in (BLOCK_SIZES | heads).items() if key in section}
        small[BLOCK_SPARSE] = section | sizes
        if isinstance(per_layer := section.get(BLOCK_SPARSE_LAYERS), list):
            entries = [per_layer[layer] for layer in layer_indices if layer < len(per_layer)]
            small[BLOCK_SPARSE][BLOCK_SPARSE_LAYERS] = entries
    # torch refuses a padding id beyond the small vocabulary; with per-layer inputs, which are looked up by id, the
    # padding token is read where a text has images
    return small | {"pad_token_id": None if values.get(PER_LAYER_IDS) is None else 0}


def _small_override(values: dict[str, Any], small: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    # sizes in the same ratio to those of the other layers; key heads still divide the query heads
    def shrunk(key: str, size: Any) -> Any:
        if not (isinstance(size, int) and isinstance(usual := values.get(key), int) and usual):
            return size
        return max(1, small[key] * size // usual)

    return {key: shrunk(key, size) for key, size in own.items()}


def _ratios(values: dict[str, Any], small: dict[str, Any]) -> dict[str, int]:
    # sizes whose ratio to others matters: key heads to query heads, and groups of experts
    ratios: dict[str, int] = {}
    heads, kv_heads = (values.get(f"num_{name}_heads") for name in ("attention", "key_value"))
    if heads is not None and heads == kv_heads:
        ratios["num_key_value_heads"] = small["num_attention_heads"]
    if isinstance(groups := values.get("n_group"), int) and groups > 1:
        ratios |= {"n_group": 2, "topk_group": 1 if values.get("topk_group") != groups else 2}
    # only sizes from the file, which may contain anything
    sizes = {key: size for key, size in values.items() if isinstance(size, int) and size > 0 and key in small}
    head_dim = sizes.get("head_dim")
    if sizes.keys() >= {*PARTS} and head_dim == sum(sizes[key] for key in PARTS):  # of latent attention
        ratios["head_dim"] = sum(small[key] for key in PARTS)
    if head_dim is not None and "v_head_dim" in sizes and "kv_lora_rank" not in values:
        ratios["v_head_dim"] = max(1, small["head_dim"] * sizes["v_head_dim"] // head_dim)
    if sizes.get("num_experts_per_tok") == 1:  # which some classes require (ZAYA1)
        ratios["num_experts_per_tok"] = 1
    if "index_kpool" in sizes:  # whole pools
        ratios["index_topk"] = 2 * SIZES["index_kpool"]
    # no rotated features, or no per-layer inputs
    ratios |= {key: 0 for key in ("qk_rope_head_dim", "hidden_size_per_layer_input") if values.get(key) == 0}
    if sizes.get("intermediate_size") == sizes.get("expand", 0) * sizes.get("hidden_size", 0):  # channels of Mamba
        ratios["intermediate_size"] = sizes["expand"] * SIZES["hidden_size"]
    if "mamba_d_ssm" in sizes:  # of Falcon-H1: the channels of all heads
        ratios["mamba_d_ssm"] = SIZES["mamba_n_heads"] * SIZES["mamba_d_head"]
    if "index_topk_blocks" in sizes and "num_key_value_heads" in small:  # each key head has a separate selection
        ratios["index_n_heads"] = ratios.get("num_key_value_heads") or small["num_key_value_heads"]
    return ratios


def _layers(values: dict[str, Any], layers: int | None) -> tuple[int, ...]:
    # indices of the first layer of each kind, at least two
    section, chosen = values.get(BLOCK_SPARSE), {0}
    for value in (*values.values(), *(section.values() if isinstance(section, dict) else ())):
        if isinstance(value, list) and len(value) == layers:
            firsts = sorted({repr(item): index for index, item in reversed([*enumerate(value)])}.values())
            chosen |= {*firsts[: 2 if len(firsts) > KINDS else None]}
    return tuple(sorted(chosen)) if len(chosen) > 1 else (0, 1)
