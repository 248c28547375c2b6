"""Transplants of latent attention: heads of attention factorized into latents, and ranks and widths changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.nn.heads import Heads, HeadsTransplant, set_output, spread, with_bias
from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import transplant_inner
from archetype.parts.attention.equal import open_gate, scales_alike, sees_all
from archetype.parts.latent_attention.factors import ROUNDING, Factorization, Factors, measured, principal
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.position.frequencies import Rotation, rotates_alike, rotation_of
from archetype.spec.base import Spec
from archetype.spec.registry import provides

FACTORIZED = "principal components of the heads"
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

    layouts: ClassVar = {
        "q.weight": "H(P|R) D", "q_down.weight": "r D", "kv_down.weight": "C|R D",
        "kv_up.weight": "H(P|Q) C", "o.weight": "D HQ", "gate_bias": "H",
        "sinks": "H",
    }  # fmt: skip
    fields: ClassVar = {"H": "num_heads", "P": "qk_nope_head_dim", "Q": "v_head_dim", "C": "kv_lora_rank"}
    writes: ClassVar = ("o.weight", "o.bias")
    # a norm of latents does not see new ones
    silent: ClassVar = {"kv_down.weight": "C", "q_down.weight": "r", "q.weight": "PR", "q_up.weight": "PR"}
    matrices: ClassVar = {"o": ("o", 0)}
    convolutions: ClassVar = ()

    def layouts_of(self, part: LatentAttention) -> Mapping[str, str]:
        low = "r|r" if part.query.joins_unnormed else "r"
        gates = "HQ" if part.gate is not None and part.gate.per == "feature" else "H"
        return {"gate.weight": f"{gates} {'D' if part.gate_from == 'input' else low}", "q_up.weight": f"H(P|R) {low}"}

    def sizes(self, part: LatentAttention, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**super().sizes(part, sizes), "R": part.qk_rope_head_dim, "r": part.query_features(0)}

    def inside(self, part: LatentAttention) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        has_rank = part.query.rank is not None
        parts: dict[str, tuple[Spec, Mapping[str, str]]] = {
            "kv_norm": (part.norm, {"N": "C"}), "k_norm": (part.key_norm, {"N": "R"}),
        }  # fmt: skip
        if has_rank:
            parts["q_norm"] = (part.norm, {"N": "r"})
        if part.index is not None:
            parts["index"] = (part.index, {"D": "D", "R": "r" if has_rank else "D", "X": "01"[not has_rank]})
        return parts

    def fixed_in(self, part: LatentAttention) -> Mapping[str, str]:
        return {} if part.position.is_absent else {"R": "different rotation angles"}

    def transfer(self, at: Transfer[LatentAttention]) -> None:
        old, new = at.old, at.new
        if type(old) is type(new):
            # so that a default that follows from the sizes does not change the scores
            ratio = scale_of(old) / scale_of(new)
            for name in {"q.weight", "q_up.weight"} & at.donated.keys() if ratio != 1.0 else ():
                at.compute(name, at.donated[name] * ratio, f"times {ratio:.6g}, the ratio of the scales of scores")
        super().transfer(at)

    def differing(self, at: Transfer[LatentAttention]) -> list[str]:
        old, new, length = at.old, at.new, at.new_sizes["T"]
        before, after = ((part.position, part.qk_rope_head_dim) for part in (old, new))
        scales = {part.query.scale for part in (old, new) if part.query.rank is not None}
        is_equal = {
            "position": rotates_alike(before, after, length),
            "query": old.query.kind == new.query.kind and len(scales) == 1,  # ranks are sizes
            "index": all(part.index is None or part.index.sees_all(length) for part in (old, new)),
            "pattern": all(sees_all(part.pattern, length, causal) for part in (old, new) for causal in (True, False)),
            "scale": True,  # which the queries were divided by
        }
        return [name for name in super().differing(at) if not is_equal.get(name)]

    def heads(self, part: LatentAttention, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        count, rank, plain = part.num_heads, part.kv_lora_rank, part.qk_nope_head_dim
        down = with_bias(tensors, "kv_down")  # (C + R, D + 1)
        up = part.latent_scale * _gained(tensors["kv_up.weight"], tensors, "kv_norm")
        up = up.unflatten(0, (count, -1)) @ down[:rank]
        queries: tuple[str, ...] = ("q.weight",)
        if "q.weight" in tensors:
            q = with_bias(tensors, "q")
        else:
            normed, *unnormed = _of_normed(part, tensors["q_up.weight"])
            normed = part.query.scale * _gained(normed, tensors, "q_norm")
            q = sum(unnormed, start=normed) @ with_bias(tensors, "q_down")
            queries = ("q_down.weight", "q_up.weight")
        q, turned = q.unflatten(0, (count, -1)), down[rank:].expand(count, -1, -1)
        k, v = up[:, :plain], up[:, plain:]
        # rotated features first, as attention has them
        k, q = torch.cat((turned, k), 1), torch.cat((q[:, plain:], q[:, :plain]), 1)
        sources = {"q": queries, "o": ("o.weight",), **dict.fromkeys("kv", ("kv_down.weight", "kv_up.weight"))}
        position = part.position if part.position.is_absent else part.position.replace(dim=part.qk_rope_head_dim)
        unlike = {name: not getattr(part, name).is_absent for name in ("norm", "key_norm")}
        unlike["pattern"] = not sees_all(part.pattern, sizes["T"], causal=True)
        return Heads(
            q, k, v, tensors["o.weight"].unflatten(1, (count, -1)), sources, tensors.get("o.bias"), scale_of(part),
            position, tuple(name for name, is_set in unlike.items() if is_set),
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
        for cause in factors.lost:
            at.promise(Start.CHANGED, cause)
        self._put(at, factors, source, root)
        for name in source.unlike:
            at.promise(Start.CHANGED, f"the donor's {name}")
        self._take_around(at)

    def _drawn(self, at: Transfer[LatentAttention]) -> Factors:
        count, tensors = at.new.num_heads, at.tensors
        if "q_down.weight" in tensors:
            normed, *unnormed = _of_normed(at.new, tensors["q_up.weight"])
            q = sum(unnormed, start=normed) @ with_bias(tensors, "q_down")
        else:
            q = with_bias(tensors, "q")
        q, up = (matrix.unflatten(0, (count, -1)) for matrix in (q, tensors["kv_up.weight"]))
        return Factors(q.double(), with_bias(tensors, "kv_down").double(), up.double())

    def _put(self, at: Transfer[LatentAttention], factors: Factors, source: Heads, root: Tensor | None) -> None:
        part, queries, of_queries = at.new, factors.q.flatten(0, 1), source.sources["q"]
        if part.query.rank is not None:
            up, down, share = principal(queries, part.query.rank, root)
            held = f"queries of rank {part.query.rank} hold {100 * (1 - share):.3g} % of the squares"
            at.require(share <= ROUNDING, held)
            drawn = with_bias(at.tensors, "q_down").double()
            drawn[: len(down)] = down
            set_matrix(at, "q_down", drawn, of_queries)
            columns = at.tensors["q_up.weight"].zero_()
            columns[:, : len(down)] = up
            at.put("q_up.weight", columns, "merged", of_queries, FACTORIZED)
            self._undo_norm(at, "q_norm", drawn, root)
        else:
            set_matrix(at, "q", queries, of_queries)
        sources = [*source.sources["k"], *source.sources["v"]]
        set_matrix(at, "kv_down", factors.kv_down, sources)
        at.put("kv_up.weight", factors.kv_up.flatten(0, 1), "merged", sources, FACTORIZED)
        self._undo_norm(at, "kv_norm", factors.kv_down[: part.kv_lora_rank], root)
        for name in set_output(at, "o", self.projections(part, at.new_sizes)["o"], source):
            at.put(name, at.tensors[name], "copied", source.sources["o"], "the heads of the donor")

    def _undo_norm(self, at: Transfer[LatentAttention], name: str, down: Tensor, root: Tensor | None) -> None:
        # the gains undo the norm on average
        if not at.new.norm.is_absent and f"{name}.weight" in at.tensors:
            size = math.sqrt(float(measured(down, root).square().mean(0).sum()))
            at.fill(f"{name}.weight", size - (1.0 if getattr(at.new.norm, "unit_offset", False) else 0.0))
        at.require(at.new.norm.is_absent, "latents are normalized; use norm: none")

    def _take_around(self, at: Transfer[LatentAttention]) -> None:
        # what is not in the products of queries, keys and values
        old, new, length = at.old, at.new, at.new_sizes["T"]
        for field, name in (("gate", "gate.weight"), ("sinks", "sinks")):
            before, after = getattr(old, field, None) or None, getattr(new, field) or None
            if field == "gate" and getattr(old, "gate_from", "input") != new.gate_from:
                at.require(after is None, "the gate's inputs")
                continue
            if field == "gate" and before is None and new.gate is not None:
                open_gate(at, new.gate)
                continue
            at.require(before == after, field)
            if before == after and name in at.tensors:
                at.require(at.fits(name), f"{name} has a different shape")
                if at.fits(name):
                    at.keep(name)
        at.require(sees_all(new.pattern, length, causal=True), "the window leaves keys out")
        at.require(scales_alike(getattr(old, "query_scale", None), new.query_scale, length), "query_scale")
        if new.index is not None:
            transplant_inner(at, "index", "", old, new.index)
            at.require(new.index.sees_all(length), "the index does not select all keys")


def scale_of(part: LatentAttention) -> float:
    return part.scale or 1 / math.sqrt(part.head_dim)


def root_of(at: Transfer[LatentAttention]) -> Tensor:
    """Return the root of the mean of x x^T over the inputs on the text.

    Raises:
        SpecError: there are no inputs, or others than the new model has.
    """
    moment = at.moment()
    if moment is None or at.old_sizes["D"] != at.new_sizes["D"] or at.gains is not None:
        cause = "needs the inputs of the donor's attention on a text, but those of the new model differ"
        raise SpecError("--with latent=whitened", cause, "use latent=balanced")
    values, vectors = torch.linalg.eigh(moment)
    least = float(values[-1]) * UNSEEN  # a text has fewer directions than the inputs
    return vectors * values.clamp(min=least).sqrt() @ vectors.T


def resized(source: Heads, heads: int, width: int) -> Heads:
    """Return the projections for another number of query heads and another input width."""
    features = source.q.shape[2] - 1

    def columns(matrix: Tensor) -> Tensor:
        zeros = matrix.new_zeros(*matrix.shape[:2], max(width - features, 0))
        return torch.cat((matrix[..., : min(width, features)], zeros, matrix[..., -1:]), dim=-1)

    other = {"number of heads": len(source.q) != heads, "features": features > width}
    lost = (name for name, is_other in other.items() if is_other)
    q, k, v = (columns(matrix) for matrix in (spread(source.q, heads), source.k, source.v))
    return replace(source, q=q, k=k, v=v, unlike=(*source.unlike, *lost))


def set_matrix(at: Transfer[LatentAttention], name: str, matrix: Tensor, sources: Sequence[str]) -> None:
    """Set a projection to a matrix whose last column is the bias."""
    at.put(f"{name}.weight", matrix[:, :-1], "merged", sources, FACTORIZED)
    if f"{name}.bias" in at.tensors:
        at.put(f"{name}.bias", matrix[:, -1], "merged", sources, FACTORIZED)
    else:
        at.require(not matrix[:, -1].any(), "biases that the new part lacks")


def _of_normed(part: LatentAttention, up: Tensor) -> tuple[Tensor, ...]:
    # columns that read the normalized query vector, and those that read it before the norm
    return up.chunk(1 + part.query.joins_unnormed, dim=1)


def _gained(matrix: Tensor, tensors: Mapping[str, Tensor], norm: str) -> Tensor:
    # with the gains of a norm before it
    weight = tensors.get(f"{norm}.weight")
    return matrix if weight is None else matrix * weight
