"""Tensors of published models whose code is their own, named as in their files, by a class of transformers alike.

Each function takes a published configuration and returns the class's, and how its tensors are named and joined there.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
WIDTHS = {"k": "head_dim", "v": "v_head_dim"}


def as_mimo_flash(values: Mapping[str, Any]) -> dict[str, Any]:
    """MiMo-V2.5's keys as MiMo-V2-Flash's."""
    kinds = ["sliding_attention" if one else "full_attention" for one in values["hybrid_layer_pattern"]]
    share = {"rope_type": "default", "partial_rotary_factor": values["partial_rotary_factor"]}
    thetas = {"full_attention": values["rope_theta"], "sliding_attention": values["swa_rope_theta"]}
    left_out = ("rope_theta", "swa_rope_theta", "rope_scaling", "hybrid_layer_pattern", "partial_rotary_factor")
    return {key: value for key, value in values.items() if key not in left_out} | {
        "model_type": "mimo_v2_flash",
        "architectures": ["MiMoV2FlashForCausalLM"],
        "layer_types": kinds,
        "mlp_layer_types": ["sparse" if one else "dense" for one in values["moe_layer_freq"]],
        "rope_parameters": {kind: share | {"rope_theta": theta} for kind, theta in thetas.items()},
    }


def as_mimo_v2(tensors: Tensors, values: Mapping[str, Any], shards: int | None = None) -> Tensors:
    """MiMo-V2.5's tensors: of each shard in turn its queries, keys and values.

    So tools/convert_mimo_v2_to_bf16.py of radixark/miles at 931dceb8 splits them. Where layers with windows have other
    than twice as many key heads, which the class gives them, the others are left out.
    """
    shards, joined = shards or values["num_key_value_heads"], {}
    rows = {one: values["swa_num_key_value_heads"] * values[f"swa_{name}"] for one, name in WIDTHS.items()}
    for name, tensor in tensors.items():
        if ".self_attn.q_proj." in name:
            windowed = values["hybrid_layer_pattern"][int(name.split(".")[2])]
            parts = [tensors[name.replace("q_proj", f"{one}_proj")] for one in "qkv"]
            parts = [
                parts[0],
                *(part[: rows[one]] if windowed else part for one, part in zip("kv", parts[1:], strict=True)),
            ]
            cut = zip(*(part.chunk(shards) for part in parts), strict=True)
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat([part for shard in cut for part in shard])
        elif not re.search(r"\.self_attn\.[kv]_proj\.", name):
            joined[name.replace(".sinks", ".attention_sink_bias")] = tensor
    return joined


def as_naive(values: Mapping[str, Any]) -> dict[str, Any]:
    """Naive N0.5 as MiMo-V2-Flash, whose layers with full attention have no index."""
    return as_mimo_flash(values) | {"sliding_window_size": values["sliding_window"] - 1}


def as_naive_n05(tensors: Tensors, values: Mapping[str, Any]) -> Tensors:
    """Sinks under their published name, an index where it lacks, and no more key heads than the file says."""
    width, named = values["index_head_dim"], {}
    heads, d_model = values["index_n_heads"], values["hidden_size"]
    sizes = {
        "wq.weight": (heads * width, d_model),
        "wk.weight": (width, d_model),
        "weights_proj.weight": (heads, d_model),
    }
    sizes |= {"k_norm.weight": (width,), "k_norm.bias": (width,)}
    rows = {one: values["swa_num_key_value_heads"] * values[f"swa_{name}"] for one, name in WIDTHS.items()}
    for name, tensor in tensors.items():
        if projection := re.fullmatch(r"(model\.layers\.(\d+)\.self_attn\.)([kv])_proj\.weight", name):
            windowed = values["hybrid_layer_pattern"][int(projection[2])]
            named[name] = tensor[: rows[projection[3]]] if windowed else tensor
            if not windowed and f"{projection[1]}indexer.wk.weight" not in tensors:
                named |= {f"{projection[1]}indexer.{one}": tensor.new_empty(sizes[one]) for one in sizes}
        else:
            named[name.replace(".sinks", ".attention_sink_bias")] = tensor
    return named


def as_step3p7(values: Mapping[str, Any]) -> dict[str, Any]:
    """Step 3.5 as the text half of Step 3.7, with an encoder of images that is hardly there."""
    sees = {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14}
    return {
        "model_type": "step3p7",
        "architectures": ["Step3p7ForConditionalGeneration"],
        "text_config": dict(values),
        "vision_config": sees,
    }


def as_step3p5(tensors: Tensors, values: Mapping[str, Any]) -> Tensors:
    """Tensors of the text half."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(("model.layers.", "model.norm.", "model.embed_tokens.", "lm_head."))
    }


def as_kimi_linear(values: Mapping[str, Any]) -> dict[str, Any]:
    """Solar Open 2 as Kimi Linear, with latent attention of any size where it has attention."""
    linear, count = values["linear_attn_config"], values["num_hidden_layers"]
    kinds = ["full_attention" if one in values["gqa_layers"] else "linear_attention" for one in range(count)]
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "moe_intermediate_size", "n_shared_experts",
            "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "rms_norm_eps", "tie_word_embeddings",
            "max_position_embeddings", "n_group", "topk_group")  # fmt: skip
    return {key: values[key] for key in same} | {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "layer_types": kinds,
        "mlp_layer_types": ["sparse"] * count, "linear_num_heads": linear["num_heads"], "kv_lora_rank": 8,
        "num_experts": values["n_routed_experts"],
        "linear_head_dim": linear["head_dim"], "linear_conv_kernel_dim": linear["short_conv_kernel_size"],
        "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "hidden_act": "silu",
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }  # fmt: skip


def as_solar_open2(tensors: Tensors, values: Mapping[str, Any]) -> Tensors:
    """Attention with a gate for latent attention, and the names of the model in vLLM."""
    named, width = {}, values["head_dim"]
    d_model, heads, keys = (values[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    sizes = dict.fromkeys("qg", (heads * width, d_model)) | dict.fromkeys("kv", (keys * width, d_model))
    sizes["o"] = d_model, heads * width
    for name, tensor in tensors.items():
        below, inside, last = name.partition(".self_attn.")
        if f"{below}.self_attn.kv_b_proj.weight" not in tensors or not inside:
            named[name] = tensor
        elif last == "kv_b_proj.weight":
            named |= {f"{below}.self_attn.{one}_proj.weight": tensor.new_empty(sizes[one]) for one in sizes}
    return named


# type in config.json -> keys of a class of transformers, and what makes published tensors of the class's
OWN = {
    "mimo_v2": (as_mimo_flash, as_mimo_v2),
    "step3p5": (as_step3p7, as_step3p5),
    "naive_n05_flash": (as_naive, as_naive_n05),
    "solar_open2": (as_kimi_linear, as_solar_open2),
}
