"""Transplants of linear attention: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, Rows, plain_heads
from archetype.nn.transplant import Transfer
from archetype.parts.linear_attention.spec import ChannelDecay, FixedDecay, LinearAttention
from archetype.parts.position.frequencies import rotates_alike
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", LinearAttention)
class LinearAttentionTransplant(HeadsTransplant[LinearAttention]):
    writes: ClassVar = ("o.weight",)
    silent: ClassVar[Mapping[str, str]] = {"conv.weight": "W", "a_up.weight": "s", "gate_up.weight": "r"}
    newest_last: ClassVar = "W"
    sized: ClassVar = ("num_heads", "head_dim", "v_head_dim", "gate_rank", "chunk_size")

    def layouts_of(self, part: LinearAttention) -> Mapping[str, str]:
        keys = "HP" if self.gives_keys(part) else "HP|HP"
        return {
            "q.weight": "HP D", "k.weight": "HP D", "v.weight": "HQ D", "conv.weight": f"{keys}|HQ 1 W",
            "a.weight": "Hp D", "a.bias": "Hp", "a_down.weight": "s D", "a_up.weight": "Hp s", "a_up.bias": "Hp",
            "gate.weight": "HQ D", "gate_down.weight": "r D", "gate_up.weight": "HQ r", "o.weight": "D HQ",
        }  # fmt: skip

    def sizes(self, part: LinearAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        keys = part.key_size(sizes["D"])
        of_channels = isinstance(part.decay, ChannelDecay)
        return {
            **sizes, "H": part.num_heads, "P": keys, "Q": part.value_size(sizes["D"]), "W": part.conv_kernel or 0,
            "p": keys if of_channels else 1, "s": getattr(part.decay, "rank", None) or 0, "r": part.gate_rank or 0,
        }  # fmt: skip

    def inside(self, part: LinearAttention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        norms = {"norm": (part.norm, {"N": "Q" if part.norm_over == "head" else "HQ"})}
        if not part.qk_norm.is_absent:
            norms |= dict.fromkeys(("q_norm", "k_norm"), (part.qk_norm, {"N": "P"}))
        return norms

    def fixed(self, part: LinearAttention) -> Mapping[str, str]:
        fixed = {"P": "queries and keys have other features"}
        if not part.norm.is_absent:
            fixed["Q"] = "the norm sees other features"
            fixed |= {"H": "the norm sees other heads"} if part.norm_over == "all" else {}
        if isinstance(part.decay, FixedDecay) and part.decay.form == "alibi":
            fixed["H"] = "decays follow the number of heads"
        return fixed

    def differing(self, at: Transfer[LinearAttention]) -> list[str]:
        old, new = ((part.position, part.key_size(sizes["D"])) for part, sizes in at.both)
        same = rotates_alike(old, new, at.new_sizes["T"])
        return [name for name in super().differing(at) if name != "position" or not same]

    def gives_keys(self, part: LinearAttention) -> bool:
        return isinstance(part.decay, ChannelDecay) and part.decay.gives_keys

    def has_heads(self, part: LinearAttention) -> bool:
        return not self.gives_keys(part)

    def heads(self, part: LinearAttention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        return plain_heads(tensors, part.num_heads, part.num_heads)

    def rows(self, part: LinearAttention, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        keys, values = ((part.num_heads, size(sizes["D"])) for size in (part.key_size, part.value_size))
        return {"q": Rows("q", *keys), "k": Rows("k", *keys), "v": Rows("v", *values), "o": Rows("o", *values)}
