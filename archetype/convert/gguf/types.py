"""Choice of the type of each tensor in a GGUF file, the same as in llama.cpp. Imports no torch.

`--type q4_k_m` names a file type. Most matrices have the type in its name. Matrices that llama.cpp's
src/llama-quant.cpp considers more important get more bits, depending on name, layer, number of experts and
grouped-query heads. The rules are those of llama.cpp in llama-cpp-python 0.3.36.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Any, Literal, NamedTuple, get_args

from archetype.errors import CheckpointError

Shapes = Mapping[str, tuple[int, ...]]

# (weights, bytes) of a block of each tensor type.
BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "i32": (1, 4),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_0": (32, 18),
    "q6_k": (256, 210),
    "q5_k": (256, 176),
    "q4_k": (256, 144),
    "q3_k": (256, 110),
    "q2_k": (256, 84),
}
FileType = Literal[
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q4_0", "q3_k_l", "q3_k_m", "q3_k_s",
    "q2_k",
]  # fmt: skip
# The type of most matrices in each file type: its name without the size of the others (small, medium or large).
FILE_TYPES: dict[str, str] = {name: re.sub("_[sml]$", "", name) for name in get_args(FileType)}
# Replacement of a type if rows are not a multiple of 256 weights.
NARROW = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# Tensors that llama.cpp needs in float32, whatever the file type.
EXACT = (
    "_norm.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "attn_rel_b.weight",
    "per_layer_model_proj.weight",
    "indexer.proj.weight",
    "indexer.q_proj.weight",
    "indexer.k_proj.weight",
    "hc_fn.weight",
    "hc_attn_fn.weight",
    "hc_ffn_fn.weight",
    "compressor_ape.weight",
    "time_mix_lerp_fused.weight",
    *(f"time_mix_{name}{part}.weight" for name in "wavg" for part in "12"),
)
IDS = "ffn_gate_tid2eid.weight"  # experts of each token id, whole numbers
HEAD, TABLE = "output.weight", "token_embd.weight"
VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")  # names of matrices that compute values
OF_70B = 80  # layers
# Query heads per key head from which llama.cpp takes a model of 80 layers for a 70B model.
GROUPED = {"qwen2": 1, "llama": 2}


class Facts(NamedTuple):
    """Properties of a model that determine the types of its tensors.

    Attributes:
        num_layers: number of layers of the model, or of its encoder.
        num_experts: number of experts per layer; 0 without experts.
        heads_of_a_group: query heads per key head.
        is_70b: whether llama.cpp treats the model as Llama or Qwen2 70B.
    """

    num_layers: int
    num_experts: int
    heads_of_a_group: int
    is_70b: bool

    @classmethod
    def of(cls, architecture: str, keys: Mapping[str, Any]) -> "Facts":
        """Read the properties from metadata keys without the architecture's prefix."""
        layers, heads = keys["block_count"], _first(keys.get("attention.head_count", 0))
        group = heads // (_first(keys.get("attention.head_count_kv", heads)) or 1)
        large = layers == OF_70B and group >= GROUPED.get(architecture, inf)
        return cls(layers, keys.get("expert_count", 0), group, large)


def _first(value: Any) -> int:
    # llama.cpp looks at the first layer
    return int(value[0] if isinstance(value, list) else value)


def check_file_type(type: str) -> None:
    if type not in FILE_TYPES:
        raise CheckpointError("--type", f"unknown type {type!r:.40}", f"use one of {', '.join(FILE_TYPES)}")


def is_exact_in_file(name: str, dimensions: int) -> bool:
    """Return whether a tensor is stored in float32 whatever the file type is."""
    return dimensions == 1 or name.endswith((*EXACT, IDS)) or not name.endswith(".weight")


def tensor_types(shapes: Shapes, type: str, facts: Facts) -> dict[str, str]:
    """Return the type of each tensor of a file.

    Args:
        shapes: shapes in torch's order, by tensor name.
        type: file type. q8_0 and q4_0 use one type for all matrices, as in 8-bit and 4-bit models.
    """
    usual, rule = FILE_TYPES[type], _Rule(type, facts, shapes)
    is_mix = BLOCKS[usual][0] == 256  # K-quants mix types
    types: dict[str, str] = {}
    for name in sorted(shapes, key=_in_order):
        shape = shapes[name]
        if is_exact_in_file(name, len(shape)):
            types[name] = "i32" if name.endswith(IDS) else "f32"
        else:
            types[name] = _fitting(rule.of(name, shape[-1]) if is_mix else usual, shape[-1])
    return {name: types[name] for name in shapes}


def tensor_bytes(shape: tuple[int, ...], type: str) -> int:
    weights, size = BLOCKS[type]
    return prod(shape) // weights * size


def _in_order(name: str) -> tuple[int, str]:
    # sort key: llama.cpp counts tensors by layer, then by name
    parts = name.split(".")
    return (int(parts[1]) if parts[0] == "blk" else -1), name


def _fitting(type: str, width: int) -> str:
    if width % BLOCKS[type][0]:
        type = NARROW.get(type, type)
    return "f16" if width % BLOCKS[type][0] else type


def _matters(layer: int, layers: int) -> bool:
    # the first and the last eighth of the layers, and every third layer between
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


class _Rule:
    """Choose the types of matrices in a mixed-type file. `of` counts calls, so call it in llama.cpp's tensor order."""

    def __init__(self, type: str, facts: Facts, shapes: Shapes) -> None:
        self._type, self._facts = type, facts
        self._is_tied = HEAD not in shapes
        self._num_values = sum(name.endswith(VALUES) for name in shapes)
        self._seen: Counter[str] = Counter()

    def of(self, name: str, width: int) -> str:
        usual = FILE_TYPES[self._type]
        if name == HEAD or (self._is_tied and name == TABLE):
            return "q8_0" if width % BLOCKS[usual][0] else "q6_k"
        kinds: list[tuple[bool, Callable[[str], str | None]]] = [
            (name.endswith(VALUES), self._value),
            (name.endswith("attn_k.weight"), self._key),
            ("ffn_down" in name, self._down),
            (name.endswith("attn_output.weight"), self._output),
        ]
        return next((kind(name) for holds, kind in kinds if holds), None) or usual

    def _value(self, name: str) -> str | None:
        index = self._seen["value"]
        self._seen["value"] += 1
        if self._facts.num_experts == 8:  # Mixtral, whose attention is a small share of the file
            return "q8_0"
        match self._type:
            case "q2_k":
                chosen: str | None = "q4_k" if self._facts.heads_of_a_group >= 4 else "q3_k"
            case "q3_k_l":
                chosen = "q5_k"
            case "q3_k_m":
                chosen = "q5_k" if index < 2 else "q4_k"
            case "q4_k_s":
                chosen = "q5_k" if index < 4 else None
            case "q4_k_m" | "q5_k_m":
                chosen = "q6_k" if _matters(index, self._num_values) else None
            case _:
                chosen = None
        few = (chosen or FILE_TYPES[self._type]) in ("q3_k", "q4_k")
        return "q5_k" if self._facts.is_70b and few else chosen

    def _key(self, name: str) -> str | None:
        return "q8_0" if self._facts.num_experts == 8 else None

    def _down(self, name: str) -> str | None:
        layers = self._facts.num_layers
        # llama.cpp counts these tensors, or reads the layer from the name if there are experts
        layer = self._seen["down"] if self._facts.num_experts <= 1 else _in_order(name)[0]
        self._seen["down"] += 1
        match self._type:
            case "q2_k":
                return "q3_k"
            case "q3_k_l":
                return "q5_k"
            case "q3_k_m":
                return "q5_k" if layer < layers // 16 else "q4_k"
            case "q4_k_s":
                return "q5_k" if layer < layers // 8 else None
            case "q4_k_m" | "q5_k_m":
                return "q6_k" if _matters(layer, layers) else None
        return None

    def _output(self, name: str) -> str | None:
        if self._facts.num_experts == 8:
            return "q5_k" if self._type in ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m") else None
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(self._type)
