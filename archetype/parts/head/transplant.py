"""Transplants of heads: an untied head copies the embedding's table, and rows of new tokens are means of the old."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from archetype.nn.ledger import How
from archetype.nn.transfer import FOLDED, Transfer
from archetype.nn.transplant import Transplant, are_equal
from archetype.parts.activation.module import activation
from archetype.parts.embedding.transplant import fill_tokens
from archetype.parts.head.spec import (
    ClassHead,
    HeadTransform,
    LanguageModelHead,
    MaskedLanguageModelHead,
    MaskedLogitsHead,
)
from archetype.spec.registry import provides


@provides("transplant", LanguageModelHead)
class LanguageModelHeadTransplant(Transplant[LanguageModelHead]):
    writes: ClassVar = ("dense.weight", "dense.bias")

    def layouts_of(self, part: LanguageModelHead) -> Mapping[str, str]:
        width = "D" if part.transform is None else "X"
        return {"weight": f"V {width}", "dense.weight": f"{width} D", "norm.weight": width, "gain.weight": "V"}

    def sizes(self, part: LanguageModelHead, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {**sizes, "X": part.table_width or sizes["D"]}

    def fold(self, at: Transfer[LanguageModelHead]) -> None:
        # the table of a tied head is also read by the embedding, which has no gains
        is_tied = at.new.tied and at.new.transform is None
        at.require(not is_tied, "the gains of the final norm cannot be folded into a tied table; use tied: false")
        if at.old.tied and not is_tied:
            at.donated["weight"] = self._table(at)
        super().fold(at)
        for name in at.donated.keys() & {"dense.weight"}:  # which writes the head's own vectors, and reads the stream
            at.compute(name, at.donated[name] * at.gains, FOLDED)

    def transfer(self, at: Transfer[LanguageModelHead]) -> None:
        if at.new.tied and not at.old.tied:
            is_equal = are_equal(self._table(at), at.donated.pop("weight"))
            at.require(is_equal, "the embedding's table replaces the head's matrix")
        is_untied = at.old.tied and not at.new.tied
        if is_untied:
            at.donated.setdefault("weight", self._table(at))
        self.take_named(at)
        if is_untied:
            how: How | None = None if "weight" in at.computed else "copied"
            at.note("weight", "from the embedding's table", how, ("embedding.token.weight",))
        for name in ("weight", "bias", "gain.weight"):
            fill_tokens(self, at, name)
        if at.old.replace(tied=at.new.tied) != at.new:
            at.promise(*self.start(at))
        before, after = (self.sizes(part, sizes)["X"] for part, sizes in at.both)
        if at.new.transform is not None and before != after:
            is_zero = _ends_at_zero(at.new.transform)
            at.require(is_zero, "the new features of the layer before the logits are not zero")

    def _table(self, at: Transfer[LanguageModelHead]) -> Tensor:
        return at.similar["embedding"].module.get_parameter("token.weight").detach()


@provides("transplant", MaskedLanguageModelHead, MaskedLogitsHead)
class MaskedHeadTransplant(LanguageModelHeadTransplant):
    """Transplants between masked-token heads and language-model heads."""

    def fold(self, at: Transfer[Any]) -> None:
        self._read_as_language_model(at)
        super().fold(at)

    def transfer(self, at: Transfer[Any]) -> None:
        self._read_as_language_model(at)
        super().transfer(at)

    def _read_as_language_model(self, at: Transfer[Any]) -> None:
        at.require(at.old.is_shifted == at.new.is_shifted, "shifted differs")
        at.old, at.new = (getattr(part, "as_language_model_head", part) for part in (at.old, at.new))


@provides("transplant", ClassHead)
class ClassHeadTransplant(Transplant[Any]):
    """A head with other classes keeps the rows of as many as both have."""

    fields: ClassVar = {"Y": "num_classes"}
    writes: ClassVar = ("dense.weight", "dense.bias")

    def layouts_of(self, part: ClassHead) -> Mapping[str, str]:
        width = "D" if part.transform is None else "X"
        return {"weight": f"Y {width}", "dense.weight": f"{width} D", "norm.weight": width}

    def sizes(self, part: ClassHead, sizes: Mapping[str, int]) -> Mapping[str, int]:
        width = None if part.transform is None else part.transform.width
        return {**super().sizes(part, sizes), "X": width or sizes["D"]}

    def fixed_in(self, part: ClassHead) -> Mapping[str, str]:
        is_free = part.transform is None or _ends_at_zero(part.transform)
        return {"Y": "other classes"} if is_free else {"Y": "other classes", "X": "the new features are not zero"}


def _ends_at_zero(transform: HeadTransform) -> bool:
    return transform.norm.is_absent and not activation(transform.activation)(torch.zeros(1)).any()
