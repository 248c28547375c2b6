"""Transplants of heads: an untied head copies the embedding's table, and rows of new tokens are the mean of the old."""

from collections.abc import Mapping
from typing import Any, ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant, are_equal, mean
from archetype.parts.head.spec import LanguageModelHead
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", LanguageModelHead)
class LanguageModelHeadTransplant(Transplant[LanguageModelHead]):
    layouts: ClassVar[Mapping[str, str]] = {"weight": "V D", "bias": "V"}

    def takes(self, old: Spec, new: LanguageModelHead) -> bool:
        return isinstance(old, LanguageModelHead)

    def transfer(self, at: Transfer[LanguageModelHead]) -> None:
        if at.new.tied and not at.old.tied:
            self._tie(at)
        if at.old.tied and not at.new.tied:
            table = at.similar["embedding"].state_dict()["token.weight"]
            at.donated["weight"] = table
            self.take_named(at)
            at.note("weight", "from the embedding's table", "copied")
        else:
            self.take_named(at)
        old, new = at.old_sizes["V"], at.new_sizes["V"]
        if new > old:
            for name in at.tensors.keys() & {"weight", "bias"}:
                at.tensors[name][old:] = mean(at.tensors[name][:old], 0)
                at.note(name, "rows of new tokens are the mean of the others")
        if at.old.replace(tied=at.new.tied) != at.new:
            at.promise(*self.start(at))

    def _tie(self, at: Transfer[Any]) -> None:
        table = at.similar["embedding"].state_dict()["token.weight"]
        if are_equal(table, at.donated.pop("weight")):
            at.promise(Start.SAME)
        else:
            at.promise(Start.CHANGED, "the embedding's table replaces the head's matrix")
