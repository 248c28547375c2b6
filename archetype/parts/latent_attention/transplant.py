"""Transplants of latent attention: heads of attention factorized into latents, and ranks and widths changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.nn.heads import Heads, HeadsTransplant, Rows, set_output, spread, with_bias
from archetype.nn.transplant import Start, Transfer
from archetype.parts.attention.equal import open_gate, scales_alike
from archetype.parts.latent_attention.factors import ROUNDING, Factorization, Factors, measured, principal
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.position.frequencies import Rotation, rotates_alike, rotation_of
from archetype.spec.base import Spec
from archetype.spec.registry import provides

UNSEEN = 1e-9  # least square of the inputs in a direction, relative to the largest


@provides("transplant", LatentAttention)
class LatentAttentionTransplant(HeadsTransplant[LatentAttention]):
    """Attention becomes latent attention by factorization, without loss if the sizes hold all of it.

    For K key heads of P features, of which R rotate, that is `norm: none`, `qk_rope_head_dim: K R`, with a position
    whose pairs have each of the R / 2 angles K times (scaling longrope can say any angles), `qk_nope_head_dim` at
    least P - R, and `kv_lora_rank` at least K (P - R + Q) or d_model. Fewer latents hold the principal components of
    keys and values (`--with latent=balanced`, or `plain` without scaling keys to the values, or `whitened` by the
    inputs on the text).
    """

    writes: ClassVar = ("o.weight", "o.bias")
    # a norm of latents does not see new ones
    silent: ClassVar[Mapping[str, str]] = {
        "kv_down.weight": "C", "kv_down.bias": "C", "q_down.weight": "r", "q_down.bias": "r", "q.weight": "PR",
        "q_up.weight": "PR",
    }  # fmt: skip
    sized: ClassVar = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "scale", "dropout", "bias")
    convolutions: ClassVar = ()

    def layouts_of(self, part: LatentAttention) -> Mapping[str, str]:
        gate = "HQ D" if part.gate is not None and part.gate.per == "feature" else "H D"
        return {
            "q.weight": "H(P|R) D", "q_down.weight": "r D", "q_down.bias": "r", "q_up.weight": "H(P|R) r",
            "kv_down.weight": "C|R D", "kv_down.bias": "C|R", "kv_up.weight": "H(P|Q) C",
            "o.weight": "D HQ", "o.bias": "D", "gate.weight": gate, "sinks": "H",
        }  # fmt: skip

    def sizes(self, part: LatentAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {
            **sizes, "H": part.num_heads, "P": part.qk_nope_head_dim, "R": part.qk_rope_head_dim,
            "Q": part.v_head_dim, "C": part.kv_lora_rank, "r": part.query_features(0),
        }  # fmt: skip

    def inside(self, part: LatentAttention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        has_rank = isinstance(part.query, LowRankQuery)
        parts: dict[str, tuple[Spec, Mapping[str, str]]] = {
            "kv_norm": (part.norm, {"N": "C"}), "k_norm": (part.key_norm, {"N": "R"}),
        }  # fmt: skip
        if has_rank:
            parts["q_norm"] = (part.norm, {"N": "r"})
        if part.index is not None:
            parts["index"] = (part.index, {"D": "D", "R": "r" if has_rank else "D", "X": "01"[not has_rank]})
        return parts

    def fixed(self, part: LatentAttention) -> Mapping[str, str]:
        return {} if part.position.is_absent else {"R": "other angles of rotation"}

    def transfer(self, at: Transfer[LatentAttention]) -> None:
        old, new = at.old, at.new
        if type(old) is type(new):
            # so that a default that follows from the sizes does not change the scores
            for name in {"q.weight", "q_up.weight"} & at.donated.keys():
                at.donated[name] = at.donated[name] * (scale_of(old) / scale_of(new))
        super().transfer(at)

    def differing(self, at: Transfer[LatentAttention]) -> list[str]:
        old, new, length = at.old, at.new, at.new_sizes["T"]
        same = set[str]()
        if rotates_alike((old.position, old.qk_rope_head_dim), (new.position, new.qk_rope_head_dim), length):
            same.add("position")
        if isinstance(old.query, LowRankQuery) and old.query.replace(rank=1) == new.query.replace(rank=1):
            same.add("query")  # ranks are sizes
        if all(part.index is None or part.index.sees_all(length) for part in (old, new)):
            same.add("index")
        return [name for name in super().differing(at) if name not in same]

    def heads(self, part: LatentAttention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        count, rank = part.num_heads, part.kv_lora_rank
        down = with_bias(tensors, "kv_down", 1)[0]  # (C + R, D + 1)
        up = (
            part.latent_scale
            * _gained(tensors["kv_up.weight"], tensors, "kv_norm").unflatten(0, (count, -1))
            @ down[:rank]
        )
        if "q.weight" in tensors:
            q, queries = with_bias(tensors, "q", count), ["q.weight"]
        else:
            factor = part.query.scale if isinstance(part.query, LowRankQuery) else 1.0
            low_rank = factor * _gained(tensors["q_up.weight"], tensors, "q_norm") @ with_bias(tensors, "q_down", 1)[0]
            q, queries = low_rank.unflatten(0, (count, -1)), ["q_down.weight", "q_up.weight"]
        plain, turned = part.qk_nope_head_dim, down[rank:].expand(count, -1, -1)
        k, v = up[:, :plain], up[:, plain:]
        # rotated features first, as attention has them
        k, q = torch.cat((turned, k), 1), torch.cat((q[:, plain:], q[:, :plain]), 1)
        sources = {"q": queries, "o": ("o.weight",), **dict.fromkeys("kv", ("kv_down.weight", "kv_up.weight"))}
        position = part.position if part.position.is_absent else part.position.replace(dim=part.qk_rope_head_dim)
        return Heads(
            q, k, v, tensors["o.weight"].unflatten(1, (count, -1)), sources, tensors.get("o.bias"), scale_of(part),
            position, tuple(name for name in ("norm", "key_norm") if not getattr(part, name).is_absent),
        )  # fmt: skip

    def take_heads(self, at: Transfer[LatentAttention], source: Heads) -> None:
        part, length = at.new, at.new_sizes["T"]
        drawn = self._drawn(at)
        source = resized(source, part.num_heads, drawn.q.shape[2] - 1)
        old = None if source.position is None else rotation_of(source.position, source.k.shape[1], length)
        new = rotation_of(part.position, part.qk_rope_head_dim, length)
        way = at.choice("latent", "balanced", "plain", "whitened")
        root = root_of(at) if way == "whitened" else None
        factors = Factorization(source, old or Rotation(), part, new or Rotation(), drawn, root).run(way != "plain")
        factors.q *= source.scale / scale_of(part)
        at.promise(Start.ROUNDED, "keys and values are factorized without loss")
        self._put(at, factors, source, root)
        for cause in (*factors.lost, *self._around(at, source)):
            at.promise(Start.CHANGED, cause)

    def _drawn(self, at: Transfer[LatentAttention]) -> Factors:
        count, tensors = at.new.num_heads, at.tensors
        if "q.weight" in tensors:
            q = with_bias(tensors, "q", count)
        else:
            q = (tensors["q_up.weight"] @ with_bias(tensors, "q_down", 1)[0]).unflatten(0, (count, -1))
        up = tensors["kv_up.weight"].unflatten(0, (count, -1))
        return Factors(q.double(), with_bias(tensors, "kv_down", 1)[0].double(), up.double())

    def _put(self, at: Transfer[LatentAttention], factors: Factors, source: Heads, root: Tensor | None) -> None:
        part, queries = at.new, factors.q.flatten(0, 1)
        if isinstance(part.query, LowRankQuery):
            up, down, share = principal(queries, part.query.rank, root)
            if share > ROUNDING:
                factors.lost.append(f"queries of rank {part.query.rank} hold {100 * (1 - share):.3g} % of the squares")
            count = up.shape[1]
            drawn = with_bias(at.tensors, "q_down", 1)[0].double()
            drawn[:count] = down
            factors.lost += set_rows_of(at, "q_down", drawn, source.sources["q"])
            columns = at.tensors["q_up.weight"].zero_()
            columns[:, :count] = up
            at.put("q_up.weight", columns, "merged", source.sources["q"])
            factors.lost += self._gains(at, "q_norm", drawn, root)
        else:
            factors.lost += set_rows_of(at, "q", queries, source.sources["q"])
        sources = [*source.sources["k"], *source.sources["v"]]
        factors.lost += set_rows_of(at, "kv_down", factors.kv_down, sources)
        at.put("kv_up.weight", factors.kv_up.flatten(0, 1), "merged", sources)
        factors.lost += self._gains(at, "kv_norm", factors.kv_down[: part.kv_lora_rank], root)
        for name in set_output(at, self.rows(part, at.new_sizes)["o"], source):
            at.put(name, at.tensors[name], "copied", source.sources["o"])

    def _gains(self, at: Transfer[LatentAttention], name: str, down: Tensor, root: Tensor | None) -> list[str]:
        # the gains undo the norm on average
        if at.new.norm.is_absent:
            return []
        size = math.sqrt(float(measured(down, root).square().mean(0).sum()))
        if f"{name}.weight" in at.tensors:
            at.fill(f"{name}.weight", size - (1.0 if getattr(at.new.norm, "unit_offset", False) else 0.0))
        return ["latents are normalized; use norm: none"]

    def _around(self, at: Transfer[LatentAttention], source: Heads) -> list[str]:
        # what is not in the products of queries, keys and values
        old, new, length = at.old, at.new, at.new_sizes["T"]
        lost = [f"the donor's {name}" for name in source.unlike]
        for field, name in (("gate", "gate.weight"), ("sinks", "sinks")):
            before, after = getattr(old, field, None) or None, getattr(new, field) or None
            if before == after:
                if name in at.tensors and at.tensors[name].shape == at.donated[name].shape:
                    at.keep(name)
                elif name in at.tensors:
                    lost.append(f"{name} has another shape")
            elif before is None and field == "gate" and new.gate is not None:
                open_gate(at, new.gate)
            else:
                lost.append(field)
        if not scales_alike(getattr(old, "query_scale", None), new.query_scale, length):
            lost.append("query_scale")
        if new.index is not None:
            at.transplant_inner("index", "", old, new.index)
            if not new.index.sees_all(length):
                lost.append("the index leaves keys out")
        return lost

    def rows(self, part: LatentAttention, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        return {"o": Rows("o", part.num_heads, part.v_head_dim)}


def scale_of(part: LatentAttention) -> float:
    return part.scale or 1 / math.sqrt(part.head_dim)


def root_of(at: Transfer[LatentAttention]) -> Tensor:
    """Return the root of the mean of x x^T over the inputs on the text.

    Raises:
        SpecError: there are no inputs, or others than the new model has.
    """
    moment = at.moments(at.donor_path)
    if moment is None or at.old_sizes["D"] != at.new_sizes["D"] or at.gains is not None:
        cause = "needs the inputs of the donor's attention on a text, and the new model has others"
        raise SpecError("--with latent=whitened", cause, "use latent=balanced")
    values, vectors = torch.linalg.eigh(moment)
    least = float(values[-1]) * UNSEEN  # a text has fewer directions than the inputs
    root: Tensor = vectors * values.clamp(min=least).sqrt() @ vectors.T
    return root


def resized(source: Heads, heads: int, width: int) -> Heads:
    """Return the projections with another number of query heads, from vectors of another width."""

    def columns(matrix: Tensor) -> Tensor:
        *features, bias = matrix.unbind(-1)
        zeros = [torch.zeros_like(bias)] * (width - len(features))
        return torch.stack((*features[:width], *zeros, bias), dim=-1)

    other = {"number of heads": len(source.q) != heads, "features": source.q.shape[2] - 1 > width}
    lost = (name for name, is_other in other.items() if is_other)
    q, k, v = (columns(matrix) for matrix in (spread(source.q, heads), source.k, source.v))
    return replace(source, q=q, k=k, v=v, unlike=(*source.unlike, *lost))


def set_rows_of(at: Transfer[LatentAttention], name: str, matrix: Tensor, sources: Sequence[str]) -> list[str]:
    """Set a projection to a matrix whose last column is the bias; return what is lost."""
    at.put(f"{name}.weight", matrix[:, :-1], "merged", sources)
    if f"{name}.bias" in at.tensors:
        at.put(f"{name}.bias", matrix[:, -1], "merged", sources)
        return []
    return ["biases that the part does not have"] if bool((matrix[:, -1] != 0).any()) else []


def _gained(matrix: Tensor, tensors: Mapping[str, Tensor], norm: str) -> Tensor:
    # with the gains of a norm before it
    weight = tensors.get(f"{norm}.weight")
    return matrix if weight is None else matrix * weight
