"""Transplants of norms: their gains, rescaled where the vectors get wider by features of zero."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from archetype.nn.inspect import PartTrace
from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant, holds
from archetype.parts.norm.spec import Affine, BatchNorm, DynamicTanh, GatedRMSNorm, L2Norm, LayerNorm, RMSNorm
from archetype.roles.norm import Norm
from archetype.spec.registry import provides


@provides("transplant", Norm)
class NormTransplant(Transplant[Any]):
    layouts: ClassVar = {"weight": "N", "running_mean": "N", "running_var": "N"}

    def transfer(self, at: Transfer[Any]) -> None:
        self.take_named(at)
        at.require(at.old == at.new, "another norm")
        if not at.new.is_absent and (old := at.old_sizes["N"]) != (new := at.new_sizes["N"]):
            at.promise(*self.resized(old, new))

    def resized(self, old: int, new: int) -> tuple[Start, str]:
        """Return the promise if `new` - `old` zero features are added."""
        return Start.CHANGED, "the norm covers a different number of features"

    def silence(self, part: Norm, module: nn.Module) -> Sequence[str]:
        names = [name for name, _ in module.named_parameters()]
        for name in names:
            module.get_parameter(name).fill_(-offset(part) if name == "weight" else 0.0)
        return names

    def fold(self, at: Transfer[Any]) -> None:
        """Fold the gains into the matrices that read the norm."""

    def importance(self, part: Norm, trace: PartTrace) -> Mapping[str, Tensor]:
        return {"D": trace.activations["out"].abs().flatten(0, -2).sum(0)}

    def gains(self, old: Norm, new: Norm, module: nn.Module) -> Tensor | None:
        """Return the donor's factors of the features, if the new norm has none and is equal otherwise."""
        return None


@provides("transplant", GatedRMSNorm)
class GatedRMSNormTransplant(NormTransplant):
    """The gate reads and multiplies all features."""

    layouts: ClassVar = {"weight": "N", "gate_down.weight": "r N", "gate_up.weight": "N r"}
    fields: ClassVar = {"r": "rank"}


@provides("transplant", Affine, L2Norm, BatchNorm, DynamicTanh)
class WithoutMeanTransplant(NormTransplant):
    """Features of zero change neither the length of a vector nor other features, and stay zero."""

    def resized(self, old: int, new: int) -> tuple[Start, str]:
        return (Start.ROUNDED, "") if new > old else super().resized(old, new)


class ScaledTransplant(NormTransplant):
    """Transplants of norms with gains, which may be stored as 1 + weight, folded into matrices, or start at 1."""

    def gains(self, old: Any, new: Any, module: nn.Module) -> Tensor | None:
        is_folded = type(old) is type(new) and old.weight and not new.weight
        return module.get_parameter("weight") + offset(old) if is_folded else None

    def transfer(self, at: Transfer[Any]) -> None:
        old, new, scale = at.old, at.new, self.rescaled(at)
        weight = at.donated.get("weight")
        if new.weight and weight is None:
            at.fill("weight", scale - offset(new))
            at.promise(Start.ROUNDED, "gains of 1 equal a norm without gains")
        elif new.weight and weight is not None and (scale != 1.0 or offset(old) != offset(new)):
            note = f"the donor's gains times {scale:.6g}" if scale != 1.0 else "the donor's gains"
            note += "" if offset(old) == offset(new) else ", stored as they are" if offset(old) else ", stored less 1"
            at.compute("weight", (weight + offset(old)) * scale - offset(new), note)
            at.promise(Start.ROUNDED)
        elif weight is not None and not new.weight:
            gains = at.donated.pop("weight") + offset(old)
            is_kept = holds(gains == 1) or (at.gains is not None and holds(gains != 0))
            if "bias" in at.donated:  # w (x + b / w) = w x + b
                divided = at.donated["bias"] / gains.masked_fill(gains == 0, 1.0)
                at.compute("bias", divided, "divided by the gains")
            at.promise(Start.ROUNDED)
            at.require(is_kept, "the gains are dropped")
        at.require(new.weight or scale == 1.0, "a norm without gains cannot undo the larger width")
        self.take_named(at)
        at.promise(*self.start_of(at))

    def rescaled(self, at: Transfer[Any]) -> float:
        """Return the factor of the gains for the new number of features."""
        return 1.0

    def start_of(self, at: Transfer[Any]) -> tuple[Start, str]:
        old, new = at.old_sizes["N"], at.new_sizes["N"]
        same = {"weight": at.new.weight, "unit_offset": at.new.unit_offset}
        if at.old.model_copy(update=same) != at.new:
            return Start.CHANGED, "another norm"
        return (Start.SAME, "") if old == new else self.resized(old, new)


@provides("transplant", RMSNorm)
class RMSNormTransplant(ScaledTransplant):
    """The mean square of D features and D' - D zeros is D / D' of theirs: gains and epsilon follow."""

    def rescaled(self, at: Transfer[Any]) -> float:
        old, new = at.old_sizes["N"], at.new_sizes["N"]
        return math.sqrt(old / new) if new > old else 1.0

    def start_of(self, at: Transfer[Any]) -> tuple[Start, str]:
        old, new = at.old_sizes["N"], at.new_sizes["N"]
        if new <= old:
            return super().start_of(at)
        eps = at.old.eps * old / new
        same = {"weight": at.new.weight, "unit_offset": at.new.unit_offset, "eps": at.new.eps}
        if at.old.model_copy(update=same) != at.new or not math.isclose(at.new.eps, eps, rel_tol=1e-6):
            return Start.CHANGED, f"eps would have to be {eps:.12g} for {new} features"
        return Start.ROUNDED, ""


@provides("transplant", LayerNorm)
class LayerNormTransplant(ScaledTransplant):
    """Transplants of LayerNorm, which never starts equal when wider, since the mean changes."""


def offset(norm: Any) -> float:
    return 1.0 if getattr(norm, "unit_offset", False) else 0.0
