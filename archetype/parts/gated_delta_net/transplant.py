"""Transplants of gated delta networks: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, Rows, plain_heads
from archetype.nn.transplant import Transfer
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.spec.registry import provides


@provides("transplant", GatedDeltaNet)
class GatedDeltaNetTransplant(HeadsTransplant[GatedDeltaNet]):
    """A decay of each head becomes one of each of its channels, which begin alike."""

    layouts: ClassVar[Mapping[str, str]] = {
        "q.weight": "KP D", "k.weight": "KP D", "v.weight": "HQ D", "conv.weight": "KP|KP|HQ 1 W", "b.weight": "H D",
        "a.weight": "Hp D", "a_down.weight": "s D", "a_up.weight": "Hp s", "dt_bias": "Hp", "A_log": "H",
        "gate.weight": "HQ D", "gate_down.weight": "r D", "gate_up.weight": "HQ r", "norm.weight": "Q",
        "o.weight": "D HQ",
    }  # fmt: skip
    writes: ClassVar = ("o.weight",)
    silent: ClassVar[Mapping[str, str]] = {"conv.weight": "W", "a_up.weight": "s", "gate_up.weight": "r"}
    newest_last: ClassVar = "W"
    sized: ClassVar = (
        "num_heads", "num_key_heads", "head_dim", "v_head_dim", "conv_kernel", "chunk_size", "decay_rank", "gate_rank",
    )  # fmt: skip

    def sizes(self, part: GatedDeltaNet, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {
            **sizes, "H": part.num_heads, "K": part.key_heads, "P": part.head_dim, "Q": part.v_head_dim,
            "W": part.conv_kernel, "p": part.head_dim if part.decay == "channel" else 1,
            "s": part.decay_rank or 0, "r": part.gate_rank or 0, "G": part.num_heads // part.key_heads,
        }  # fmt: skip

    def fixed(self, part: GatedDeltaNet) -> Mapping[str, str]:
        return {
            "P": "queries and keys of other features have unit length", "Q": "the norm sees other features of a head",
            "G": "heads read other keys",
        }  # fmt: skip

    def transfer(self, at: Transfer[GatedDeltaNet]) -> None:
        if self._divides_decays(at):
            at.selected = {**at.selected, "p": [0] * at.new.head_dim}
        super().transfer(at)

    def differing(self, at: Transfer[GatedDeltaNet]) -> list[str]:
        return [name for name in super().differing(at) if name != "decay" or not self._divides_decays(at)]

    def _divides_decays(self, at: Transfer[GatedDeltaNet]) -> bool:
        return getattr(at.old, "decay", None) == "head" and at.new.decay == "channel"

    def heads(self, part: GatedDeltaNet, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        return plain_heads(tensors, part.key_heads, part.num_heads)

    def rows(self, part: GatedDeltaNet, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        keys, values = (part.key_heads, part.head_dim), (part.num_heads, part.v_head_dim)
        return {"q": Rows("q", *keys), "k": Rows("k", *keys), "v": Rows("v", *values), "o": Rows("o", *values)}
