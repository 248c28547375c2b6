"""Transplants of parts side by side: the donor's part becomes one of them, and the others begin by adding nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant, transplant_inner, transplant_of
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether, factors
from archetype.spec.base import Spec
from archetype.spec.registry import provides

NORMS = ("norms", "post_norms")


class Donor(NamedTuple):
    """A part of the donor: its module's name, and the factors of its output and its input."""

    part: Any
    path: str
    scale: float
    input_scale: float


@provides("transplant", MixersTogether, FeedForwardsTogether)
class TogetherTransplant(Transplant[Any]):
    """An added part outputs zero at first: its scale is 0, or its output projection is.

    With `scales: learned` the scale has a gradient, and with constant scales the output projection has one. The part
    reuses what it can from the donor's part, such as queries, keys and values.
    """

    layouts: ClassVar = {"convolutions.output.weight": "D 1 W"}

    def sizes(self, part: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        convolutions = part.sum_convolutions
        return {**super().sizes(part, sizes), "W": convolutions.kernel if convolutions else 0}

    def takes(self, old: Spec, new: Any) -> bool:
        return type(old) is type(new) or self._place(old, new) is not None

    def inside(self, part: Any) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        norms = {name: getattr(part, name) or () for name in NORMS}
        return {f"{name}.{index}": (norm, {"N": "D"}) for name in NORMS for index, norm in enumerate(norms[name])}

    def fold(self, at: Transfer[Any]) -> None:
        """Fold the gains into the parts, which all read the same input unless a part normalizes it again."""
        at.require(not at.old.norms, "the gains of the preceding norm cannot be folded into norms")

    def silence(self, part: Any, module: nn.Module) -> Sequence[str]:
        # gains of norms of the outputs; or the outputs, whose norm is zero as well
        return self._silence("post_norms", part, module) or self._silence("parts", part, module)

    def _silence(self, field: str, part: Any, module: nn.Module) -> Sequence[str]:
        members = {f"{field}.{index}": inner for index, inner in enumerate(getattr(part, field) or ())}
        names = {
            path: transplant_of(inner).silence(inner, module.get_submodule(path)) for path, inner in members.items()
        }
        return [f"{path}.{name}" for path in names for name in names[path]] if all(names.values()) else ()

    def _place(self, old: Spec, new: Any) -> int | None:
        # the first part of the donor's kind, or else the first that takes over anything of it
        kinds = [type(part) is type(old) for part in new.parts]
        takes = [transplant_of(part).takes(old, part) for part in new.parts]
        return kinds.index(True) if any(kinds) else takes.index(True) if any(takes) else None

    def _donors(self, at: Transfer[Any]) -> dict[int, Donor]:
        # by the index of the new part
        if type(at.old) is not type(at.new):
            place = self._place(at.old, at.new)
            assert place is not None
            return {place: Donor(at.old, "", 1.0, 1.0)}
        scales = at.donated["scales"].tolist() if "scales" in at.donated else at.old.factors
        parts = enumerate(zip(at.old.parts, scales, _inputs(at.old), strict=True))
        return {index: Donor(part, f"parts.{index}", scale, before) for index, (part, scale, before) in parts}

    def transfer(self, at: Transfer[Any]) -> None:
        donors, new = self._donors(at), at.new
        learns = "scales" in at.tensors
        initial = [donors[index].scale if index in donors else 0.0 for index in range(len(new.parts))]
        parts = zip(new.parts, initial if learns else new.factors, _inputs(new), strict=True)
        gains = None if getattr(at.old, "norms", None) else at.gains
        for index, (part, scale, before) in enumerate(parts):
            path = f"parts.{index}"
            if (donor := donors.get(index)) is None:
                self._take_beside(at, path, part, next(iter(donors.values())), scale)
            else:
                transplant_inner(at, path, donor.path, donor.part, part, gains=gains)
                at.require((scale, before) == (donor.scale, donor.input_scale), "other scales")
        if learns:
            scales = at.tensors["scales"].new_tensor(initial)
            if at.fits("scales") and torch.equal(at.donated["scales"], scales):
                at.keep("scales")
            else:
                at.put("scales", scales, "new", (), "those of the donor, and 0 for new parts")
        donated, convolutions = at.old.sum_convolutions if type(at.old) is type(new) else None, new.sum_convolutions
        begins = donated is None and convolutions is not None and convolutions.residual
        if begins:  # with a kernel of zero, which changes nothing
            at.fill("convolutions.output.weight", 0.0)
        at.require(begins or donated == convolutions, "other convolutions")
        if any(getattr(new, name) for name in NORMS) or (convolutions is not None and not begins):
            self.take_named(at)
        counts = [[len(getattr(part, name, None) or ()) for name in NORMS] for part in (at.old, new)]
        at.require(counts[0] == counts[1], "other norms")
        dropped = [donor.path for index, donor in donors.items() if index >= len(new.parts)]
        at.require(not dropped, f"{', '.join(dropped)} of the donor is not used")

    def _take_beside(self, at: Transfer[Any], path: str, part: Any, donor: Donor, scale: float) -> None:
        if transplant_of(part).takes(donor.part, part):
            transplant_inner(at, path, donor.path, donor.part, part)
        names = transplant_of(part).silence(part, at.module.get_submodule(path)) if scale else ()
        for name in names:
            at.fill(f"{path}.{name}", 0.0)
        at.ledger.forget(f"{at.path}.{path}")
        why = f"{path} adds to the output; set its scale to 0, or use scales: learned"
        at.require(names or not scale, why)


def _inputs(part: Any) -> Sequence[float]:
    return factors(part.input_scales, len(part.parts))
