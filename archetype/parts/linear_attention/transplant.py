"""Transplants of linear attention: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import HeadsTransplant
from archetype.nn.transfer import Transfer
from archetype.parts.linear_attention.spec import ChannelDecay, FixedDecay, LinearAttention
from archetype.parts.position.frequencies import rotates_alike
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", LinearAttention)
class LinearAttentionTransplant(HeadsTransplant[LinearAttention]):
    layouts: ClassVar = {
        "q.weight": "HP D", "k.weight": "HP D", "v.weight": "HQ D", "a.weight": "Hp D", "a_down.weight": "s D",
        "a_up.weight": "Hp s", "gate.weight": "HQ D", "gate_down.weight": "r D", "gate_up.weight": "HQ r",
        "o.weight": "D HQ",
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads", "P": "key_size", "Q": "value_size", "W": "conv_kernel", "r": "gate_rank"}
    writes: ClassVar = ("o.weight",)
    silent: ClassVar = {"a_up.weight": "s", "gate_up.weight": "r"}
    sized: ClassVar = ("head_dim", "v_head_dim")

    def layouts_of(self, part: LinearAttention) -> Mapping[str, str]:
        return {"conv.weight": "HP|HP|HQ 1 W" if self.has_heads(part) else "HP|HQ 1 W"}

    def sizes(self, part: LinearAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        of_channels = part.key_size(sizes["D"]) if isinstance(part.decay, ChannelDecay) else 1
        return {**super().sizes(part, sizes), "p": of_channels, "s": getattr(part.decay, "rank", None) or 0}

    def inside(self, part: LinearAttention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        norms = {"norm": (part.norm, {"N": "Q" if part.norm_over == "head" else "HQ"})}
        if not part.qk_norm.is_absent:
            norms |= dict.fromkeys(("q_norm", "k_norm"), (part.qk_norm, {"N": "P"}))
        return norms

    def fixed_in(self, part: LinearAttention) -> Mapping[str, str]:
        fixed = {"P": "queries and keys have different features"}
        if not part.norm.is_absent:
            fixed["Q"] = "the norm covers different features"
            fixed |= {"H": "the norm covers different heads"} if part.norm_over == "all" else {}
        if isinstance(part.decay, FixedDecay) and part.decay.form == "alibi":
            fixed["H"] = "decays follow the number of heads"
        return fixed

    def differing(self, at: Transfer[LinearAttention]) -> list[str]:
        old, new = ((part.position, part.key_size(sizes["D"])) for part, sizes in at.both)
        same = rotates_alike(old, new, at.new_sizes["T"])
        return [name for name in super().differing(at) if name != "position" or not same]

    def has_heads(self, part: LinearAttention) -> bool:
        return not (isinstance(part.decay, ChannelDecay) and part.decay.gives_keys)
