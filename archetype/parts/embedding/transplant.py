"""Transplants of embeddings: rows of new tokens become the mean of the old rows, and new features zero."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import NEW, Start, Transfer, Transplant, selection
from archetype.parts.embedding.spec import Embedding
from archetype.spec.registry import provides


@provides("transplant", Embedding)
class EmbeddingTransplant(Transplant[Embedding]):
    layouts: ClassVar[Mapping[str, str]] = {
        "token.weight": "R W", "token_type.weight": "Y W", "position.weight": "T W", "project.weight": "D W",
    }  # fmt: skip
    writes: ClassVar = ("token.weight", "token_type.weight", "position.weight", "project.weight")

    def sizes(self, part: Embedding, sizes: Mapping[str, int]) -> Mapping[str, int]:
        width = part.width or sizes["D"]
        return {**sizes, "R": sizes["V"] + part.extra_rows, "W": width, "Y": part.num_token_types}

    def transfer(self, at: Transfer[Embedding]) -> None:
        rows = selection(at.old_sizes["V"], at.new_sizes["V"], at.selected.get("V"))
        extra = selection(at.old.extra_rows, at.new.extra_rows)  # of ids that are not in the vocabulary
        behind = [row if row == NEW else at.old_sizes["V"] + row for row in extra]
        at.selected = {**at.selected, "R": [*rows, *behind]}
        super().transfer(at)
        new = [row for row in range(at.new_sizes["V"]) if row >= len(rows) or rows[row] == NEW]
        if new and "token.weight" in at.tensors:
            table, width = at.tensors["token.weight"], at.donated["token.weight"].shape[1]
            table[new, :width] = at.donated["token.weight"].mean(0)[: table.shape[1]]
            at.note("token.weight", "rows of new tokens are the mean of the others")

    def start(self, at: Transfer[Embedding]) -> tuple[Start, str]:
        if at.old.replace(dropout=at.new.dropout) == at.new:
            return Start.SAME, ""
        return super().start(at)
