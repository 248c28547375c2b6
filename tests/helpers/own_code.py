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
    left_out = ("rope_theta", "swa_rope_theta", "hybrid_layer_pattern", "partial_rotary_factor")
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


# type in config.json -> keys of a class of transformers, and what makes published tensors of the class's
OWN = {"mimo_v2": (as_mimo_flash, as_mimo_v2), "step3p5": (as_step3p7, as_step3p5)}
