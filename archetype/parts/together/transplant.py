"""Transplants of parts side by side: the donor's part becomes one of them, and the others begin with a weight of 0."""

from typing import Any

from archetype.nn.transplant import Start, Transfer, Transplant, transplant_of
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", MixersTogether, FeedForwardsTogether)
class TogetherTransplant(Transplant[Any]):
    def takes(self, old: Spec, new: Any) -> bool:
        return type(old) is type(new) or self._place(old, new) is not None

    def _place(self, old: Spec, new: Any) -> int | None:
        # the first part of the donor's kind, or else the first that takes over anything of it
        kinds = [type(part) is type(old) for part in new.parts]
        takes = [transplant_of(part).takes(old, part) for part in new.parts]
        return kinds.index(True) if any(kinds) else takes.index(True) if any(takes) else None

    def transfer(self, at: Transfer[Any]) -> None:
        if type(at.old) is type(at.new):
            for index, (old, new) in enumerate(zip(at.old.parts, at.new.parts, strict=False)):
                at.transplant_inner(f"parts.{index}", f"parts.{index}", old, new)
            self.take_named(at)  # norms
            for name in ("scales", "input_scales", "norms", "post_norms"):
                if getattr(at.old, name) != getattr(at.new, name):
                    at.promise(Start.CHANGED, f"other {name}")
            return
        place = self._place(at.old, at.new)
        assert place is not None
        at.transplant_inner(f"parts.{place}", "", at.old, at.new.parts[place])
        scales = at.new.scales or (1.0,) * len(at.new.parts)
        inputs = at.new.input_scales or (1.0,) * len(at.new.parts)
        is_same = all(scale == (1.0 if index == place else 0.0) for index, scale in enumerate(scales))
        if at.new.norms or at.new.post_norms:
            at.promise(Start.CHANGED, "the norms are new")
        if not is_same or inputs[place] != 1.0:
            at.promise(Start.CHANGED, "the other parts add to the output; begin with scales of 0")
