"""Transplants of attention: heads added, repeated, merged or removed, and fields that change no score."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isclose, prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from archetype.nn.heads import Heads, HeadsTransplant, heads_of, spread
from archetype.nn.inspect import PartTrace
from archetype.nn.layouts import NEW, best
from archetype.nn.ledger import Start
from archetype.nn.random import generator_for
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant, are_equal, mean
from archetype.parts.attention.equal import begin, begin_norms, equal_fields, fold_factors, open_gate, sees_all
from archetype.parts.attention.spec import Attention
from archetype.parts.convolutions.transplant import begin_convolutions
from archetype.parts.embedding.transplant import fill_tokens
from archetype.parts.position.frequencies import rotates_alike
from archetype.parts.position.spec import Rotary
from archetype.spec.base import Spec
from archetype.spec.registry import provides

DRAWN = "drawn with the donor's standard deviation"
# what a layer that reads another layer's keys does not have
OF_KEYS = (
    *("k.weight", "k.bias", "v.weight", "v.bias"),
    *(f"{norm}.{name}" for norm in ("k_norm", "value_norm") for name in ("weight", "bias", "alpha", "shift")),
)
# fields because of which the output is not softmax(scale q k^T) v
UNLIKE = (
    "qk_norm",
    "value_norm",
    "heads_norm",
    "query_gain",
    "gate_gain",
    "joint_convolution",
    "key_factors",
    "key_bias",
    "softcap",
    "clip_qkv",
    "differential",
    "value_embedding",
    "convolutions",
)


@provides("transplant", Attention)
class AttentionTransplant(HeadsTransplant[Attention]):
    """Fewer key heads for the same queries are the means of their groups, which lose least (Ainslie 2023, section 2.1).

    `heads=first` takes the first head of each group and `heads=random` draws new ones, as in their figure 4. Fewer
    query heads are those that add most to the output on a text (as in Muralidharan 2024, equation 1, where the output
    projection is left out).
    """

    layouts: ClassVar = {
        "q.weight": "HP D", "k.weight": "KP D", "v.weight": "KQ D", "o.weight": "D HQ", "sinks": "H", "score": "H P",
        "q_global.weight": "HP D", "k_global.weight": "KP D", "v_global.weight": "KQ D",
        "gate_bias": "H", "value_norm.weight": "Q", "heads_norm.weight": "HQ", "value_embedding.weight": "V KQ",
        "query_gain.weight": "HP",
    }  # fmt: skip
    writes: ClassVar = ("o.weight", "o.bias")
    silent: ClassVar = {"k.weight": "P"}  # keys of zero for the new features of the queries
    sized: ClassVar = ("num_heads", "num_kv_heads", "head_dim", "v_head_dim")
    convolutions: ClassVar = ()
    inner: ClassVar = ("joint", "key_bias")

    def layouts_of(self, part: Attention) -> Mapping[str, str]:
        queries, keys = ("HP", "KP") if part.qk_norm_over == "all" else ("P", "P")
        gate = "HQ D" if part.gate is None or part.gate.per == "feature" else "H D"
        layouts = {"q_norm.weight": queries, "k_norm.weight": keys, "gate.weight": gate}
        layouts["gate_gain.weight"] = gate.removesuffix(" D")
        widths = {"input": "D", "q": "HP", "k": "KP", "v": "KQ", "output": "D"}
        layouts |= {f"convolutions.{place}.weight": f"{width} 1 W" for place, width in widths.items()}
        table = part.value_embedding
        reads_all = table is not None and table.gate is not None and not table.gate.features
        return layouts | ({"value_gate.weight": "K D"} if reads_all else {})

    def sizes(self, part: Attention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        heads, kernel = part.sizes(sizes["D"]), part.convolutions.kernel if part.convolutions else 0
        of_heads = {"H": heads.num_heads, "K": heads.num_kv_heads, "P": heads.head_dim}
        return {**sizes, **of_heads, "Q": part.value_width(sizes["D"]), "W": kernel}

    def inside(self, part: Attention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {} if part.index is None else {"index": (part.index, {"D": "D", "R": "D", "X": "1"})}

    def importance(self, part: Attention, trace: PartTrace) -> Mapping[str, Tensor]:
        squares = trace.activations["heads"].square().sum((0, 2))  # (B, H, T, Q) to (H, Q)
        return {"H": (squares * trace.module.o.weight.square().sum(0).view(squares.shape)).sum(1)}

    def transfer(self, at: Transfer[Attention]) -> None:
        if not Transplant.takes(self, at.old, at.new):
            source = heads_of(at)
            scale = self.heads(at.new, at.tensors, at.new_sizes).scale
            self.take_heads(at, replace(source, q=source.q * (source.scale / scale)))
            return
        fold_factors(at)
        begin(at)
        begin_convolutions(at)
        begin_norms(at)
        borrowed = self._read_keys(at)
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        at.promise(*self.start(at))
        for why in self._obstacles(at, old, new):
            at.promise(Start.CHANGED, why)
        merged = "" if at.selected.keys() & {"H", "K"} else self._choose_heads(at, old, new)
        self.take_named(at)
        fill_tokens(self, at, "value_embedding.weight")
        if at.new.gate is not None and at.old.gate is None:
            open_gate(at, at.new.gate)
        for name in borrowed:
            at.note(name, "from the layer whose keys it read", "copied", (f"{at.similar['keys'].path}.{name}",))
        for name in self._with_keys(at.new) if merged else ():
            if name in at.tensors and name in at.donated:
                at.note(name, merged, "new" if merged == DRAWN else "merged")

    def _with_keys(self, part: Attention) -> Mapping[str, str]:
        return {name: layout for name, layout in self.all_layouts(part).items() if "K" in layout}

    def _choose_heads(self, at: Transfer[Attention], old: Mapping[str, int], new: Mapping[str, int]) -> str:
        # which of the donor's heads each head continues, so that each query head still reads its own keys
        heads, keys, merged = old["H"], old["K"], ""
        ranks = at.rank("H") if new["H"] < heads else None
        size, into = heads // new["K"], new["H"] // new["K"]  # query heads of a group, before and after
        if heads // keys == into:  # groups of the same size are added or removed
            read = at.similar.get("read")  # the layer whose keys this one goes on reading, which has the same groups
            of_keys = ranks if read is None or at.cuts.ranks is None else at.cuts.ranks(read.path, "H")
            groups = best(keys, new["K"], None if of_keys is None else of_keys.view(keys, into).sum(1))
            chosen = [NEW if group == NEW else group * into + index for group in groups for index in range(into)]
        elif heads % new["K"] or (new["K"] % keys and keys % new["K"]):
            at.promise(Start.CHANGED, f"{new['K']} key heads are neither merged groups nor copies of {keys}")
            return ""
        else:
            groups = [group * keys // new["K"] for group in range(new["K"])]
            if new["K"] < keys:
                merged, groups = self._merge(at, old, new["K"]), range(new["K"])
            chosen = []
            for group in range(new["K"]):
                own = best(size, into, None if ranks is None else ranks[group * size :][:size])
                chosen += [NEW if index == NEW else group * size + index for index in own]
        at.selected = {**at.selected, "H": chosen, "K": groups}
        return merged

    def _merge(self, at: Transfer[Attention], old: Mapping[str, int], count: int) -> str:
        # the donor's key heads of each new one, as one of them
        way, is_equal = at.choice("heads", "mean", "first", "random"), True
        old = {**old, "1": 1}  # of a convolution's layout
        for name, layout in self._with_keys(at.old).items():
            if name in at.donated:
                letters = [letter for letter in layout if letter != " "]
                axis = letters.index("K")
                groups = at.donated[name].reshape([old[letter] for letter in letters]).unflatten(axis, (count, -1))
                first = groups.select(axis + 1, 0)
                is_equal &= are_equal(groups, first.unsqueeze(axis + 1).expand_as(groups))
                merged = mean(groups, axis + 1) if way == "mean" and not is_equal else first
                if way == "random":
                    generator = generator_for(at.cuts.seed, f"{at.path}.{name}", merged.device)
                    merged = torch.empty_like(merged).normal_(0.0, float(merged.std()), generator=generator)
                sizes = {**old, "K": count}
                at.donated[name] = merged.reshape([prod(sizes[letter] for letter in word) for word in layout.split()])
        words = DRAWN if way == "random" else f"{way} of each {old['K'] // count} heads"
        at.require(is_equal and way != "random", words)
        at.promise(Start.ROUNDED, "the merged heads are equal")
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
            at.require(is_equal, "reads the keys of another layer, which differ from its own")
        elif at.old.keys_from is not None and at.new.keys_from is None:
            borrowed = [name for name in OF_KEYS if name in theirs and name in at.tensors]
            at.donated |= {name: theirs[name] for name in borrowed}
            at.promise(Start.CHANGED, "keys of its own, with the matrices from the layer whose keys it read")
        at.old = at.old.model_copy(update={"keys_from": at.new.keys_from})
        return borrowed

    def _obstacles(self, at: Transfer[Attention], old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
        # why other sizes cannot start equal
        part, before = at.new, at.old
        others = {letter for letter in "HKPQ" if old[letter] != new[letter]}
        scales = [self._scale(*of) for of in at.both]
        if part.score == "dot" and part.scale == before.scale and not isclose(*scales, rel_tol=1e-6):
            yield f"scores of {new['P']} features have a different scale"
        widths = [each.sizes(sizes["D"]).rotary_dim for each, sizes in at.both]
        if isinstance(part.position, Rotary) and part.position == before.position and widths[0] != widths[1]:
            yield f"different features are rotated; use position.dim={widths[0]}"
        if part.qk_norm_over == "all" and not part.qk_norm.is_absent and others & set("HKP"):
            yield "the norm over all queries includes different heads"
        if not part.heads_norm.is_absent and others & set("HQ"):
            yield "the norm over all heads includes different heads"
        if "H" in others and not (part.position.is_absent or isinstance(part.position, Rotary)):
            yield "each head has its own position biases"
        if part.differential is not None and (others or at.path != at.donor_path):
            yield "differential attention's lambda depends on the layer"
        if part.index is not None and others & set("HK") and part.index.num_selections != 1:
            yield "the index selects keys for different heads"
        if "Q" in others and not part.value_norm.is_absent:
            yield "the norm of values covers different features"
        if "P" in others and (not part.qk_norm.is_absent or part.score != "dot"):
            yield "the scores cover different features"

    def _scale(self, part: Attention, sizes: Mapping[str, int]) -> float:
        return part.scale or float(part.sizes(sizes["D"]).head_dim ** -0.5)

    def sizing(self, at: Transfer[Attention]) -> set[str]:
        before, after = (self._scale(*of) for of in at.both)
        is_equal = before == after and at.old.score == at.new.score == "dot"
        return super().sizing(at) | ({"scale"} if is_equal else set())

    def differing(self, at: Transfer[Attention]) -> list[str]:
        equal = equal_fields(at)
        scales = (self._scale(*of) for of in at.both)
        if at.old.score == at.new.score == "dot" and isclose(*scales, rel_tol=1e-6):
            equal.add("scale")
        return [name for name in super().differing(at) if name not in equal]

    def has_heads(self, part: Attention) -> bool:
        return part.score == "dot" and part.keys_from is None

    def heads(self, part: Attention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        shared = [name for name in ("k.weight", "k.bias") if part.keys_as_values and name in tensors]
        plain = super().heads(part, {**tensors, **{name.replace("k", "v", 1): tensors[name] for name in shared}}, sizes)
        fields = {name: getattr(part, name) for name in UNLIKE}
        unlike = {
            "pattern": not all(sees_all(part.pattern, sizes["T"], causal) for causal in (True, False)),
            "index": part.index is not None and not part.index.sees_all(sizes["T"]),
            "softmax": part.softmax != "standard",
            **{name: x not in (None, False) and not getattr(x, "is_absent", False) for name, x in fields.items()},
        }
        return replace(
            plain, v=part.value_scale * plain.v, scale=self._scale(part, sizes), position=part.position,
            unlike=tuple(name for name, is_set in unlike.items() if is_set),
            sources={**plain.sources, "v": ("k.weight",)} if shared else plain.sources,
        )  # fmt: skip

    def start_of(self, at: Transfer[Attention], source: Heads) -> tuple[Start, str]:
        """Attention that reuses all heads of another kind of attention, such as expanded latents, starts equal."""
        old, new, own = at.old, at.new, self.heads(at.new, at.tensors, at.new_sizes)
        if source.unlike or own.unlike:
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
            "gates, sinks or query scales": any(
                getattr(part, name, None) for part in (old, new) for name in ("gate", "sinks", "query_scale")
            ),
            "another width": at.old_sizes["D"] > at.new_sizes["D"],
        }
        causes = [cause for cause, differ in differs.items() if differ]
        return (Start.CHANGED, ", ".join(causes)) if causes else (Start.ROUNDED, "all heads come from the donor")


def _kept_of_keys(part: Attention) -> tuple[Any, ...]:
    # what keys and values depend on, but for the fields in which a layer must agree with the one that it reads
    return part.clip_qkv, part.value_embedding
