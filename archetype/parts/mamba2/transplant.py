"""Transplants of Mamba-2: states and heads added, and queries, keys and values of another mixer as C, B and x."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, Rows
from archetype.parts.mamba2.spec import Mamba2
from archetype.spec.registry import provides


@provides("transplant", Mamba2)
class Mamba2Transplant(HeadsTransplant[Mamba2]):
    """C, B and x are the queries, keys and values of linear attention (Dao 2024; Wang 2024, The Mamba in the Llama)."""

    layouts: ClassVar[Mapping[str, str]] = {
        "in_proj.weight": "HP|HP|KZ|KY|H D", "in_proj.bias": "HP|HP|KZ|KY|H", "conv.weight": "HP|KZ|KY 1 W",
        "conv.bias": "HP|KZ|KY", "dt_bias": "H", "A_log": "H", "D": "H", "norm.weight": "HP",
        "out_proj.weight": "D HP", "out_proj.bias": "D",
    }  # fmt: skip
    writes: ClassVar = ("out_proj.weight", "out_proj.bias")
    # nothing reads the new states Y by C
    silent: ClassVar[Mapping[str, str]] = {
        "in_proj.weight": "Y", "in_proj.bias": "Y", "conv.bias": "Y", "conv.weight": "W",
    }  # fmt: skip
    newest_last: ClassVar = "W"
    twins: ClassVar[Mapping[str, str]] = {"Y": "Z"}
    sized: ClassVar = (
        "num_heads", "head_dim", "state_size", "num_groups", "conv_kernel", "chunk_size", "conv_bias", "bias",
        "dt_min", "dt_max",
    )  # fmt: skip

    def sizes(self, part: Mamba2, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {
            **sizes, "H": part.num_heads, "P": part.head_dim, "K": part.num_groups, "Z": part.state_size,
            "Y": part.state_size, "W": part.conv_kernel, "G": part.num_heads // part.num_groups,
        }  # fmt: skip

    def fixed(self, part: Mamba2) -> Mapping[str, str]:
        fixed = {"G": "heads read other groups"}
        return fixed | dict.fromkeys("HP", "the norm sees other features") if part.has_norm else fixed

    def heads(self, part: Mamba2, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        weight, bias = tensors["in_proj.weight"], tensors.get("in_proj.bias")
        matrix = torch.cat((weight, weight.new_zeros(len(weight), 1) if bias is None else bias[:, None]), dim=1)
        q, k, v = (
            matrix[rows.start : rows.start + rows.heads * rows.features].unflatten(0, (rows.heads, -1))
            for rows in (self.rows(part, sizes)[letter] for letter in "qkv")
        )
        o = tensors["out_proj.weight"].unflatten(1, (part.num_heads, -1))
        sources = {**dict.fromkeys("qkv", ("in_proj.weight",)), "o": ("out_proj.weight",)}
        return Heads(q, k, v, o, sources, tensors.get("out_proj.bias"), unlike=("recurrence",))

    def rows(self, part: Mamba2, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        # in_proj has the gate, x, B, C and the steps
        groups, heads = (part.num_groups, part.state_size), (part.num_heads, part.head_dim)
        keys = 2 * part.inner
        queries = keys + part.num_groups * part.state_size
        return {
            "q": Rows("in_proj", *groups, queries), "k": Rows("in_proj", *groups, keys),
            "v": Rows("in_proj", *heads, part.inner), "o": Rows("out_proj", *heads),
        }  # fmt: skip
