"""Transplants of gated delta networks: heads added, and queries, keys and values of another mixer."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.heads import HeadsTransplant
from archetype.nn.transfer import Transfer
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.spec.registry import provides


@provides("transplant", GatedDeltaNet)
class GatedDeltaNetTransplant(HeadsTransplant[GatedDeltaNet]):
    """Expand a per-head decay to equal per-channel decays."""

    layouts: ClassVar = {
        "q.weight": "KP D", "k.weight": "KP D", "v.weight": "HQ D", "conv.weight": "KP|KP|HQ 1 W", "b.weight": "H D",
        "a.weight": "Hp D", "a_down.weight": "s D", "a_up.weight": "Hp s", "dt_bias": "Hp", "A_log": "H",
        "gate.weight": "HQ D", "gate_down.weight": "r D", "gate_up.weight": "HQ r", "gate.bias": "HQ",
        "gate_up.bias": "HQ", "norm.weight": "Q", "o.weight": "D HQ",
    }  # fmt: skip
    fields: ClassVar = {
        "H": "num_heads", "K": "key_heads", "P": "head_dim", "Q": "v_head_dim", "W": "conv_kernel", "s": "decay_rank",
        "r": "gate_rank",
    }  # fmt: skip
    writes: ClassVar = ("o.weight",)
    silent: ClassVar = {"a_up.weight": "s", "gate_up.weight": "r"}
    fixed: ClassVar = {
        "P": "queries and keys have different features", "Q": "the norm covers different features of a head",
        "G": "heads use different keys",
    }  # fmt: skip
    sized: ClassVar = ("num_key_heads",)

    def sizes(self, part: GatedDeltaNet, sizes: Mapping[str, int]) -> Mapping[str, int]:
        of_channels = part.head_dim if part.decay == "channel" else 1
        return {**super().sizes(part, sizes), "p": of_channels, "G": part.num_heads // part.key_heads}

    def transfer(self, at: Transfer[GatedDeltaNet]) -> None:
        if self._divides_decays(at):
            at.selected = {**at.selected, "p": [0] * at.new.head_dim}
        super().transfer(at)

    def differing(self, at: Transfer[GatedDeltaNet]) -> list[str]:
        return [name for name in super().differing(at) if name != "decay" or not self._divides_decays(at)]

    def _divides_decays(self, at: Transfer[GatedDeltaNet]) -> bool:
        return getattr(at.old, "decay", None) == "head" and at.new.decay == "channel"
