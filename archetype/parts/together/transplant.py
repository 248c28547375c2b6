"""Transplants of parts side by side: the donor's part becomes one of them, and the others begin with a weight of 0."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from archetype.nn.transplant import Start, Transfer, Transplant, transplant_of
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", MixersTogether, FeedForwardsTogether)
class TogetherTransplant(Transplant[Any]):
    def takes(self, old: Spec, new: Any) -> bool:
        return type(old) is type(new) or self._place(old, new) is not None

    def fold(self, at: Transfer[Any]) -> None:
        """Leave the gains to the parts, which all read the same input."""

    def silence(self, part: Any, module: nn.Module) -> Sequence[str]:
        parts = [transplant_of(inner).silence(inner, module.get_submodule(f"parts.{index}"))
                 for index, inner in enumerate(part.parts)]  # fmt: skip
        names = [f"parts.{index}.{name}" for index, names in enumerate(parts) for name in names]
        return names if all(parts) else ()

    def _place(self, old: Spec, new: Any) -> int | None:
        # the first part of the donor's kind, or else the first that takes over anything of it
        kinds = [type(part) is type(old) for part in new.parts]
        takes = [transplant_of(part).takes(old, part) for part in new.parts]
        return kinds.index(True) if any(kinds) else takes.index(True) if any(takes) else None

    def transfer(self, at: Transfer[Any]) -> None:
        if type(at.old) is type(at.new):
            for index, (old, new) in enumerate(zip(at.old.parts, at.new.parts, strict=False)):
                at.transplant_inner(f"parts.{index}", f"parts.{index}", old, new)
            if (at.old.scales, at.old.input_scales) != (at.new.scales, at.new.input_scales):
                at.promise(Start.CHANGED, "other scales")
            return
        place = self._place(at.old, at.new)
        assert place is not None
        at.transplant_inner(f"parts.{place}", "", at.old, at.new.parts[place])
        scales = at.new.scales or (1.0,) * len(at.new.parts)
        inputs = at.new.input_scales or (1.0,) * len(at.new.parts)
        is_same = all(scale == (1.0 if index == place else 0.0) for index, scale in enumerate(scales))
        if not is_same or inputs[place] != 1.0:
            at.promise(Start.CHANGED, "the other parts add to the output; begin with scales of 0")
