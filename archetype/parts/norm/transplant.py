"""Transplants of norms: their gains, rescaled where the vectors get wider by features of zero."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.roles.norm import Norm
from archetype.spec.registry import provides


@provides("transplant", Norm)
class NormTransplant(Transplant[Norm]):
    layouts: ClassVar[Mapping[str, str]] = {"weight": "N", "bias": "N"}

    def transfer(self, at: Transfer[Norm]) -> None:
        self.take_named(at)
        if at.old != at.new:
            at.promise(Start.CHANGED, "another norm")

    def sizes(self, part: Norm, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {"N": sizes["N"]}


@provides("transplant", RMSNorm)
class RMSNormTransplant(NormTransplant):
    """The mean square of D features and D' - D zeros is D / D' of theirs: gains and epsilon follow."""

    def transfer(self, at: Transfer[Any]) -> None:
        old, new = self.sizes(at.old, at.old_sizes)["N"], self.sizes(at.new, at.new_sizes)["N"]
        if new <= old:
            super().transfer(at)
            return
        self.take_named(at)
        scale, eps = math.sqrt(old / new), at.old.eps * old / new
        if (weight := at.tensors.get("weight")) is None:
            at.promise(Start.CHANGED, "a norm without gains cannot undo the larger width")
            return
        offset = 1.0 if at.old.unit_offset else 0.0
        if not weight.is_meta:
            weight[:old] = (weight[:old] + offset) * scale - offset
        is_same = math.isclose(at.new.eps, eps, rel_tol=1e-6) and at.old.replace(eps=at.new.eps) == at.new
        why = "" if is_same else f"eps would have to be {eps:.12g} for {new} features"
        at.promise(Start.ROUNDED if is_same else Start.CHANGED, why)


@provides("transplant", LayerNorm)
class LayerNormTransplant(NormTransplant):
    def transfer(self, at: Transfer[Any]) -> None:
        super().transfer(at)
        if self.sizes(at.new, at.new_sizes) != self.sizes(at.old, at.old_sizes):
            at.promise(Start.CHANGED, "the mean and variance of another number of features")
