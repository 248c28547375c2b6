"""Transplants of embeddings: rows of new tokens become the mean of the old rows, and new features zero."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import NEW, Start, Transfer, Transplant, mean
from archetype.parts.embedding.spec import Embedding
from archetype.spec.registry import provides


@provides("transplant", Embedding)
class EmbeddingTransplant(Transplant[Embedding]):
    layouts: ClassVar[Mapping[str, str]] = {
        "token.weight": "V W", "token_type.weight": "Y W", "position.weight": "T W", "project.weight": "D W",
    }  # fmt: skip
    writes: ClassVar = ("token.weight", "token_type.weight", "position.weight", "project.weight")

    def sizes(self, part: Embedding, sizes: Mapping[str, int]) -> Mapping[str, int]:
        width = part.width or sizes["D"]
        rows = sizes["T"] + getattr(part.position, "offset", 0)  # of learned positions
        return {**sizes, "T": rows, "W": width, "Y": part.num_token_types}

    def transfer(self, at: Transfer[Embedding]) -> None:
        super().transfer(at)
        rows = at.selected.get("V", range(at.old_sizes["V"]))
        new = [row for row in range(at.new_sizes["V"]) if row >= len(rows) or rows[row] == NEW]
        if new and "token.weight" in at.tensors:
            table, width = at.tensors["token.weight"], at.donated["token.weight"].shape[1]
            table[new, :width] = mean(at.donated["token.weight"], 0)[: table.shape[1]]
            at.note("token.weight", "rows of new tokens are the mean of the others")

    def start(self, at: Transfer[Embedding]) -> tuple[Start, str]:
        if at.old.replace(dropout=at.new.dropout) == at.new:
            return Start.SAME, ""
        return super().start(at)
