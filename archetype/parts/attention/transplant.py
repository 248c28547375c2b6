"""Transplants of attention: heads repeated, merged or removed, and fields that change no score within the context."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant, are_equal, mean
from archetype.parts.attention.spec import Attention
from archetype.roles.pattern import Pattern, pattern_rule
from archetype.spec.registry import provides

KEYS = {"k.weight": "P", "k.bias": "P", "v.weight": "Q", "v.bias": "Q"}  # tensors of key heads, and their features


@provides("transplant", Attention)
class AttentionTransplant(Transplant[Attention]):
    """Fewer key heads are the means of their groups by default (Ainslie 2023, section 2.1)."""

    writes: ClassVar = ("o.weight", "o.bias")

    layouts: ClassVar[Mapping[str, str]] = {
        "q.weight": "HP D", "k.weight": "KP D", "v.weight": "KQ D", "o.weight": "D HQ",
        "q.bias": "HP", "k.bias": "KP", "v.bias": "KQ", "o.bias": "D", "sinks": "H", "score": "HP",
    }  # fmt: skip

    def layouts_of(self, part: Attention) -> Mapping[str, str]:
        gate = "HQ D" if part.gate is not None and part.gate.per == "feature" else "H D"
        return {**self.layouts, "gate.weight": gate}

    def sizes(self, part: Attention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        heads = part.sizes(sizes["D"])
        return {
            **sizes, "H": heads.num_heads, "K": heads.num_kv_heads, "P": heads.head_dim,
            "Q": part.value_width(sizes["D"]),
        }  # fmt: skip

    def transfer(self, at: Transfer[Attention]) -> None:
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        if new["H"] == old["H"] and new["P"] == old["P"] and new["Q"] == old["Q"] and "K" not in at.selected:
            if new["K"] > old["K"] and new["K"] % old["K"] == 0:
                at.selected = {**at.selected, "K": [head * old["K"] // new["K"] for head in range(new["K"])]}
            elif new["K"] < old["K"] and old["K"] % new["K"] == 0:
                self._merge(at, old["K"], new["K"])
        super().transfer(at)

    def _merge(self, at: Transfer[Attention], old: int, new: int) -> None:
        # the donor's key heads of each new one, as one of them: their mean unless another way is chosen
        way = at.choice("heads", "mean", "first")
        is_equal = True
        for name in KEYS:
            if name in at.donated:
                groups = at.donated[name].unflatten(0, (new, old // new, -1))  # (K, K_old / K, P, ...)
                is_equal &= are_equal(groups, groups[:, :1].expand_as(groups))
                at.donated[name] = (mean(groups, 1) if way == "mean" else groups[:, 0]).flatten(0, 1)
        merged = f"{way} of each {old // new} heads"
        at.promise(Start.ROUNDED if is_equal else Start.CHANGED, "the merged heads are equal" if is_equal else merged)
        at.old = at.old.replace(num_kv_heads=new)
        self.merged = merged

    def take_named(self, at: Transfer[Attention]) -> None:
        super().take_named(at)
        if merged := getattr(self, "merged", None):
            for name in KEYS:
                if name in at.tensors:
                    at.note(name, merged, "merged")

    def start(self, at: Transfer[Attention]) -> tuple[Start, str]:
        new, length = at.new, at.new_sizes["T"]
        same = {name: getattr(new, name) for name in ("dropout", "num_heads", "num_kv_heads", "head_dim", "v_head_dim")}
        if sees_all(at.old.pattern, length) and sees_all(new.pattern, length):
            same["pattern"] = new.pattern
        if new.index is not None and getattr(new.index, "top_k", 0) >= length:
            same["index"] = new.index
        if at.old.model_copy(update=same) == new:
            return Start.SAME, ""
        changed = [
            name
            for name in type(new).model_fields
            if getattr(at.old.model_copy(update=same), name) != getattr(new, name)
        ]
        return Start.CHANGED, f"{', '.join(changed)} differs"


def sees_all(pattern: Pattern, length: int) -> bool:
    """Return whether each position attends to all earlier ones in a context of this length."""
    return pattern_rule(pattern).cache_length(length) >= length
