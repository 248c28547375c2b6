"""Transplants of attention: heads added, repeated, merged or removed, and fields that change no score."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, Rows, heads_of, spread, with_bias
from archetype.nn.inspect import PartTrace
from archetype.nn.random import generator_for
from archetype.nn.transplant import NEW, Start, Transfer, Transplant, are_equal, best, mean
from archetype.parts.attention.equal import begin, begin_norms, equal_fields, fold_factors, open_gate, sees_all
from archetype.parts.attention.spec import Attention
from archetype.parts.position.frequencies import rotates_alike
from archetype.parts.position.spec import Rotary
from archetype.spec.base import Spec
from archetype.spec.registry import provides

HARMLESS = ("dropout", "num_heads", "num_kv_heads", "head_dim", "v_head_dim")  # what these change is seen in the sizes
# what a layer that reads another layer's keys does not have
OF_KEYS = ("k.weight", "k.bias", "v.weight", "v.bias", "k_norm.weight", "k_norm.bias", "value_norm.weight")


@provides("transplant", Attention)
class AttentionTransplant(HeadsTransplant[Attention]):
    """Fewer key heads for the same queries are the means of their groups, which lose least (Ainslie 2023, section 2.1).

    `heads=first` takes the first head of each group and `heads=random` draws new ones, as in their figure 4. Fewer
    query heads are those that add most to the output on a text (as in Muralidharan 2024, equation 1, where the output
    projection is left out).
    """

    writes: ClassVar = ("o.weight", "o.bias")
    # keys of zero for the new features of the queries
    silent: ClassVar[Mapping[str, str]] = {"k.weight": "P", "k.bias": "P"}
    convolutions: ClassVar = ()

    def layouts_of(self, part: Attention) -> Mapping[str, str]:
        over_all = part.qk_norm_over == "all"
        queries, keys = ("HP", "KP") if over_all else ("P", "P")
        gate = "HQ D" if part.gate is None or part.gate.per == "feature" else "H D"
        layout = {
            "q.weight": "HP D", "k.weight": "KP D", "v.weight": "KQ D", "o.weight": "D HQ",
            "q.bias": "HP", "k.bias": "KP", "v.bias": "KQ", "o.bias": "D", "sinks": "H", "score": "H P",
            "q_norm.weight": queries, "q_norm.bias": queries, "k_norm.weight": keys, "k_norm.bias": keys,
            "value_norm.weight": "Q", "value_norm.bias": "Q", "heads_norm.weight": "HQ", "heads_norm.bias": "HQ",
            "gate.weight": gate, "gate_bias": "H", "value_embedding.weight": "V KQ",
            "q_global.weight": "HP D", "k_global.weight": "KP D", "v_global.weight": "KQ D",
            "q_global.bias": "HP", "k_global.bias": "KP", "v_global.bias": "KQ",
        }  # fmt: skip
        if part.value_embedding is not None and part.value_embedding.gate is not None:
            layout |= {} if part.value_embedding.gate.features else {"value_gate.weight": "K D"}
        return layout

    def sizes(self, part: Attention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        heads = part.sizes(sizes["D"])
        return {
            **sizes, "H": heads.num_heads, "K": heads.num_kv_heads, "P": heads.head_dim,
            "Q": part.value_width(sizes["D"]),
        }  # fmt: skip

    def inside(self, part: Attention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {} if part.index is None else {"index": (part.index, {"D": "D", "R": "D", "X": "1"})}

    def importance(self, part: Attention, trace: PartTrace) -> Mapping[str, Tensor]:
        squares = trace.activations["heads"].square().sum((0, 2))  # (B, H, T, Q) to (H, Q)
        return {"H": (squares * trace.module.o.weight.square().sum(0).view(squares.shape)).sum(1)}

    def transfer(self, at: Transfer[Attention]) -> None:
        if not Transplant.takes(self, at.old, at.new):
            source = heads_of(at)
            scale = self.heads(at.new, at.tensors, at.new_sizes).scale if self.has_heads(at.new) else source.scale
            self.take_heads(at, replace(source, q=source.q * (source.scale / scale)))
            return
        fold_factors(at)
        begin(at)
        begin_norms(at)
        borrowed = self._read_keys(at)
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        at.promise(*self.start(at))
        for why in self._obstacles(at, old, new):
            at.promise(Start.CHANGED, why)
        merged = ""
        if not at.selected.keys() & {"H", "K"}:
            merged = self._choose_heads(at, old, new)
        self.take_named(at)
        if at.new.gate is not None and at.old.gate is None:
            open_gate(at, at.new.gate)
        for name in borrowed:
            at.note(name, "of the layer whose keys it read", "copied", (f"{at.similar['keys'].path}.{name}",))
        for name in _with_keys(self.layouts_of(at.new)) if merged else ():
            if name in at.tensors and name in at.donated:
                at.note(name, merged, "new" if merged == DRAWN else "merged")

    def _choose_heads(self, at: Transfer[Attention], old: Mapping[str, int], new: Mapping[str, int]) -> str:
        # which of the donor's heads each head continues, so that each query head still reads its own keys
        heads, keys, merged = old["H"], old["K"], ""
        ranks = at.rank("H") if new["H"] < heads else None
        if heads // keys == new["H"] // new["K"]:  # groups of the same size are added or removed
            size, read = heads // keys, at.similar.get("read")
            # a layer that reads the keys of another one keeps the groups that the other keeps
            of_keys = ranks if ranks is None or read is None else at.ranks(read.path, "H")
            groups = best(keys, new["K"], None if of_keys is None else of_keys.view(keys, size).sum(1))
            chosen = [_entry(group, size, index) for group in groups for index in range(size)]
            at.selected = {**at.selected, "H": chosen, "K": groups}
            return ""
        fits = heads % new["K"] == 0 and (new["K"] % keys == 0 or keys % new["K"] == 0)
        if not fits:
            at.promise(Start.CHANGED, f"{new['K']} key heads are neither groups nor copies of {keys}")
            return ""
        if new["K"] < keys:
            merged = self._merge(at, old, new["K"])
            groups = list(range(new["K"]))
        else:
            groups = [group * keys // new["K"] for group in range(new["K"])]
        size, into = heads // new["K"], new["H"] // new["K"]
        chosen = []
        for group in range(new["K"]):
            own = None if ranks is None else ranks[group * size :][:size]
            chosen += [index if index == NEW else group * size + index for index in best(size, into, own)]
        at.selected = {**at.selected, "H": chosen, "K": groups}
        return merged

    def _merge(self, at: Transfer[Attention], old: Mapping[str, int], count: int) -> str:
        # the donor's key heads of each new one, as one of them
        way, is_equal = at.choice("heads", "mean", "first", "random"), True
        for name, layout in _with_keys(self.layouts_of(at.old)).items():
            if name in at.donated:
                letters = [letter for letter in layout if letter != " "]
                axis = letters.index("K")
                groups = at.donated[name].reshape([old[letter] for letter in letters]).unflatten(axis, (count, -1))
                first = groups.select(axis + 1, 0)
                is_equal &= are_equal(groups, first.unsqueeze(axis + 1).expand_as(groups))
                merged = mean(groups, axis + 1) if way == "mean" and not is_equal else first
                if way == "random":
                    generator = generator_for(0, f"{at.path}.{name}", merged.device)
                    merged = torch.empty_like(merged).normal_(0.0, float(merged.std()), generator=generator)
                sizes = {**old, "K": count}
                at.donated[name] = merged.reshape([prod(sizes[letter] for letter in word) for word in layout.split()])
        words = DRAWN if way == "random" else f"{way} of each {old['K'] // count} heads"
        is_equal &= way != "random"
        at.promise(Start.ROUNDED if is_equal else Start.CHANGED, "the merged heads are equal" if is_equal else words)
        at.old = at.old.model_copy(update={"num_kv_heads": count})
        return words

    def _read_keys(self, at: Transfer[Attention]) -> Sequence[str]:
        # keys of another layer, or one's own instead of them; returns what is taken from the layer that was read
        borrowed: list[str] = []
        source = at.similar.get("keys")
        module: Any = None if source is None else source.module
        theirs: dict[str, Tensor] = {} if source is None else module.state_dict()
        if at.new.keys_from is not None and at.old.keys_from is None:
            own = {name: at.donated.pop(name) for name in OF_KEYS if name in at.donated}
            is_equal = source is not None and own.keys() == theirs.keys() & set(OF_KEYS)
            is_equal = is_equal and all(are_equal(own[name], theirs[name]) for name in own)
            is_equal = is_equal and _kept_of_keys(at.old) == _kept_of_keys(module.spec)
            cause = "reads the keys of another layer, which are not its own"
            at.promise(*((Start.SAME, "") if is_equal else (Start.CHANGED, cause)))
        elif at.old.keys_from is not None and at.new.keys_from is None:
            borrowed = [name for name in OF_KEYS if name in theirs and name in at.tensors]
            at.donated |= {name: theirs[name] for name in borrowed}
            at.promise(Start.CHANGED, "keys of its own, with the matrices of the layer whose keys it read")
        at.old = at.old.model_copy(update={"keys_from": at.new.keys_from})
        return borrowed

    def _obstacles(self, at: Transfer[Attention], old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
        # why other sizes cannot start equal
        part = at.new
        other_heads = (old["H"], old["K"]) != (new["H"], new["K"])
        if part.qk_norm_over == "all" and not part.qk_norm.is_absent and (other_heads or old["P"] != new["P"]):
            yield "the norm of all queries sees other heads"
        if not part.heads_norm.is_absent and (old["H"], old["Q"]) != (new["H"], new["Q"]):
            yield "the norm of all heads sees other heads"
        is_biased = not (part.position.is_absent or isinstance(part.position, Rotary))
        if old["H"] != new["H"] and is_biased:
            yield "each head has its own position biases"
        is_resized = other_heads or (old["P"], old["Q"]) != (new["P"], new["Q"])
        if part.differential is not None and (is_resized or at.path != at.donor_path):
            yield "pairs of heads are subtracted with a factor that depends on the layer"
        if part.index is not None and other_heads and part.index.num_selections != 1:
            yield "the index selects keys for other heads"
        if old["Q"] != new["Q"] and not part.value_norm.is_absent:
            yield "the norm of values sees other features"
        if old["P"] != new["P"] and (not part.qk_norm.is_absent or part.score != "dot"):
            yield "the scores see other features"

    def has_heads(self, part: Attention) -> bool:
        return part.score == "dot" and part.keys_from is None

    def heads(self, part: Attention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        heads, length = part.sizes(sizes["D"]), sizes["T"]
        values = "k" if part.keys_as_values else "v"
        q, k, v = (
            with_bias(tensors, name, count)
            for name, count in (("q", heads.num_heads), ("k", heads.num_kv_heads), (values, heads.num_kv_heads))
        )
        unlike = {
            "pattern": not all(sees_all(part.pattern, length, causal) for causal in (True, False)),
            "index": part.index is not None and not part.index.sees_all(length),
            **{name: not getattr(part, name).is_absent for name in ("qk_norm", "value_norm", "heads_norm")},
            **{
                name: getattr(part, name) is not None
                for name in ("softcap", "clip_qkv", "differential", "value_embedding")
            },
        }
        sources = {**{name: (f"{name}.weight",) for name in "qko"}, "v": (f"{values}.weight",)}
        return Heads(
            q, k, part.value_scale * v, tensors["o.weight"].unflatten(1, (heads.num_heads, -1)), sources,
            tensors.get("o.bias"), part.scale or heads.head_dim**-0.5, part.position,
            tuple(name for name, is_set in unlike.items() if is_set),
        )  # fmt: skip

    def rows(self, part: Attention, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        heads = part.sizes(sizes["D"])
        values = part.value_width(sizes["D"])
        keys = {} if part.keys_from is not None else {"k": Rows("k", heads.num_kv_heads, heads.head_dim)}
        if keys and not part.keys_as_values:
            keys["v"] = Rows("v", heads.num_kv_heads, values)
        return {
            "q": Rows("q", heads.num_heads, heads.head_dim), **keys, "o": Rows("o", heads.num_heads, values),
        }  # fmt: skip

    def start_of(self, at: Transfer[Attention], source: Heads) -> tuple[Start, str]:
        """Attention with all heads of another kind of attention starts equal, such as latents that are expanded."""
        old, new = at.old, at.new
        own = self.heads(new, at.tensors, at.new_sizes) if self.has_heads(new) else None
        if own is None or source.unlike or own.unlike:
            return super().start_of(at, source)
        differs = {
            "other heads": own.q.shape[:2] != source.q.shape[:2] or len(own.k) % len(source.k) != 0,
            "fewer features of values": own.v.shape[1] < source.v.shape[1],
            "other positions": source.position is None
            or not rotates_alike((source.position, own.q.shape[1]), (new.position, own.q.shape[1]), at.new_sizes["T"]),
            "other biases": not all(
                torch.allclose(spread(x, len(y))[..., -1], y[:, : x.shape[1], -1])
                for x, y in zip((source.q, source.k, source.v), (own.q, own.k, own.v), strict=True)
            ),
            "gates, sinks or scales of queries": any(
                getattr(part, name, None) for part in (old, new) for name in ("gate", "sinks", "query_scale")
            ),
            "another width": at.old_sizes["D"] > at.new_sizes["D"],
        }
        causes = [cause for cause, differ in differs.items() if differ]
        return (Start.CHANGED, ", ".join(causes)) if causes else (Start.ROUNDED, "all heads are those of the donor")

    def start(self, at: Transfer[Attention]) -> tuple[Start, str]:
        new = at.new
        same: dict[str, Any] = {name: getattr(new, name) for name in HARMLESS}
        scales = [part.scale or self.sizes(part, sizes)["P"] ** -0.5 for part, sizes in at.both]
        start = Start.SAME
        if new.score == at.old.score == "dot" and math.isclose(*scales, rel_tol=1e-6):
            same["scale"] = new.scale
            start = Start.SAME if scales[0] == scales[1] else Start.ROUNDED
        elif new.score == "dot" and new.scale == at.old.scale:
            return Start.CHANGED, f"scores of {self.sizes(new, at.new_sizes)['P']} features have another scale"
        position = at.old.position
        if isinstance(position, Rotary) and isinstance(new.position, Rotary):
            widths = [part.sizes(sizes["D"]).rotary_dim for part, sizes in at.both]
            if widths[0] == widths[1]:
                same["position"] = position.replace(dim=new.position.dim)
            elif position == new.position:
                return Start.CHANGED, f"other features are rotated; use position.dim={widths[0]}"
        equal = equal_fields(at)
        start = max(start, Start.ROUNDED if equal else start)
        known: Any = at.old.model_copy(update=same | equal)
        changed = [name for name in type(new).model_fields if getattr(known, name) != getattr(new, name)]
        return (Start.CHANGED, f"{', '.join(changed)} differs") if changed else (start, "")


DRAWN = "drawn with the donor's standard deviation"


def _kept_of_keys(part: Attention) -> tuple[Any, ...]:
    # what keys and values depend on, but for the fields in which a layer must agree with the one that it reads
    return part.clip_qkv, part.value_embedding


def _with_keys(layout: Mapping[str, str]) -> Mapping[str, str]:
    return {name: letters for name, letters in layout.items() if "K" in letters}


def _entry(group: int, size: int, index: int) -> int:
    return NEW if group == NEW else group * size + index
