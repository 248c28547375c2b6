"""Transplants of native sparse attention: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import ClassVar

from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, set_rows
from archetype.nn.transfer import Transfer
from archetype.parts.native_sparse_attention.spec import BRANCHES, NativeSparseAttention
from archetype.spec.registry import provides


@provides("transplant", NativeSparseAttention)
class NativeSparseAttentionTransplant(HeadsTransplant[NativeSparseAttention]):
    """Every branch begins with the keys and values of the donor's heads."""

    layouts: ClassVar = {
        "q.weight": "KGP D", "gate.weight": "KG3 D", "o.weight": "D KGQ",
        **{f"k.{branch}.weight": "KP D" for branch in BRANCHES},
        **{f"v.{branch}.weight": "KQ D" for branch in BRANCHES},
        "compress.k.positions": "c P", "compress.k.up.weight": "w cP", "compress.k.down.weight": "P w",
        "compress.v.positions": "c Q", "compress.v.up.weight": "w cQ", "compress.v.down.weight": "Q w",
    }  # fmt: skip
    fields: ClassVar = {"K": "kv_heads", "P": "head_dim", "Q": "value_width"}
    writes: ClassVar = ("o.weight",)
    silent: ClassVar = {f"compress.{name}.down.weight": "w" for name in "kv"}
    fixed: ClassVar = {
        "P": "scores cover other features", "Q": "values have other features", "G": "other heads share a selection",
        "c": "different blocks are compressed",
    }  # fmt: skip
    sized: ClassVar = ("num_heads", "num_kv_heads", "v_head_dim")
    matrices: ClassVar = {"q": ("q", 0), "k": ("k.selected", 0), "v": ("v.selected", 0), "o": ("o", 0)}
    convolutions: ClassVar = ()

    def sizes(self, part: NativeSparseAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        compression = part.compression
        of_part = {"G": part.num_heads // part.kv_heads, "c": compression.block, "w": compression.hidden or 0}
        return {**super().sizes(part, sizes), **of_part}

    def heads(self, part: NativeSparseAttention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        return replace(super().heads(part, tensors, sizes), scale=part.head_dim**-0.5, unlike=("branches",))

    def take_heads(self, at: Transfer[NativeSparseAttention], source: Heads) -> None:
        source = replace(source, q=source.q * (source.scale / at.new.head_dim**-0.5))
        super().take_heads(at, source)
        projections = self.projections(at.new, at.new_sizes)
        for letter, branch in product("kv", set(at.new.with_keys) - {"selected"}):
            projection = projections[letter]._replace(module=f"{letter}.{branch}")
            for name in set_rows(at, letter, projection, source):
                at.put(name, at.tensors[name], "copied", source.sources[letter], "the heads of the donor")
