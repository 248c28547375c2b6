"""Transplants of RWKV-7: ranks of its projections added, or removed."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.rwkv7.spec import MIXED, RWKV7
from archetype.spec.registry import provides

RANKS = {"decay": "d", "rate": "a", "gate": "g", "value_share": "s"}


@provides("transplant", RWKV7)
class RWKV7Transplant(Transplant[RWKV7]):
    layouts: ClassVar = {
        **dict.fromkeys(("r.weight", "k.weight", "v.weight"), "HP D"), "o.weight": "D HP", "bonus": "H P",
        **{f"mix_{name}": "D" for name in MIXED},
        **dict.fromkeys(("removed", "key_rate", *RANKS, "norm.weight"), "HP"),
        **{f"{name}_down.weight": f"{letter} D" for name, letter in RANKS.items()},
        **{f"{name}_up.weight": f"HP {letter}" for name, letter in RANKS.items()},
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads"}
    writes: ClassVar = ("o.weight",)
    silent: ClassVar = {f"{name}_up.weight": letter for name, letter in RANKS.items()}
    fixed: ClassVar = {"P": "the norm covers different features of a head"}
    sized: ClassVar = ("decay_rank", "rate_rank", "gate_rank", "value_rank")

    def sizes(self, part: RWKV7, sizes: Mapping[str, int]) -> Mapping[str, int]:
        ranks = {letter: part.ranks.get(name, 0) for name, letter in RANKS.items()}
        return {**super().sizes(part, sizes), **ranks, "P": sizes["D"] // part.num_heads}
