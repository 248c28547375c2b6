"""Transplants of embeddings: rows of new tokens are means of old rows, and new features are zero."""

from collections.abc import Mapping
from typing import ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.embedding.spec import Embedding
from archetype.spec.registry import provides


@provides("transplant", Embedding)
class EmbeddingTransplant(Transplant[Embedding]):
    """The row of a new token is the mean of the tokens that spelled it (Gee 2022, section 2), or of all tokens."""

    writes: ClassVar = ("token.weight", "token_type.weight", "position.weight", "project.weight", "project.bias")

    def layouts_of(self, part: Embedding) -> Mapping[str, str]:
        width, added = "W" if part.width else "D", "W" if part.added_width else "D"
        rows = "V|X" if part.extra_rows else "V"
        return {
            "token.weight": f"{rows} {width}", "token_type.weight": f"Y {added}", "position.weight": f"T {added}",
            "project.weight": "D W", "project.bias": "D",
        }  # fmt: skip

    def sizes(self, part: Embedding, sizes: Mapping[str, int]) -> Mapping[str, int]:
        positions = sizes["T"] + getattr(part.position, "offset", 0)
        return {**sizes, "W": part.width or sizes["D"], "Y": part.num_token_types, "X": part.extra_rows, "T": positions}

    def transfer(self, at: Transfer[Embedding]) -> None:
        letters = [self.layouts_of(part)["position.weight"][-1] for part in (at.old, at.new)]
        old, new = self.sizes(at.old, at.old_sizes)[letters[0]], self.sizes(at.new, at.new_sizes)[letters[1]]
        at.transplant_inner(
            "norm", "norm", at.old.norm, at.new.norm, old_sizes={"N": old}, new_sizes={"N": new},
            selected={"N": at.indices(letters[1], old, new)},
        )  # fmt: skip
        super().transfer(at)
        self.fill_tokens(at, "token.weight")

    def start(self, at: Transfer[Embedding]) -> tuple[Start, str]:
        same = at.old.replace(dropout=at.new.dropout, norm=at.new.norm)  # the norm promises for itself
        return (Start.SAME, "") if same == at.new else super().start(at)
