"""Transplants of embeddings: rows of new tokens are means of old rows, and new features are zero."""

from collections.abc import Mapping
from typing import Any, ClassVar

from archetype.nn.layouts import NEW, Entries
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.embedding.spec import Embedding
from archetype.spec.base import Spec
from archetype.spec.registry import provides


@provides("transplant", Embedding)
class EmbeddingTransplant(Transplant[Embedding]):
    """The row of a new token is the mean of the tokens that spelled it (Gee 2022, section 2), or of all tokens."""

    layouts: ClassVar = {"project.weight": "D w"}
    writes: ClassVar = ("token.weight", "token_type.weight", "position.weight", "project.weight", "project.bias")

    def layouts_of(self, part: Embedding) -> Mapping[str, str]:
        width, added = "w" if part.width else "D", "w" if part.added_width else "D"
        rows = "V|X" if part.extra_rows else "V"
        return {
            "token.weight": f"{rows} {width}", "token_type.weight": f"Y {added}", "position.weight": f"T {added}",
        }  # fmt: skip

    def sizes(self, part: Embedding, sizes: Mapping[str, int]) -> Mapping[str, int]:
        positions = sizes["T"] + getattr(part.position, "offset", 0)
        return {**sizes, "w": part.width or sizes["D"], "Y": part.num_token_types, "X": part.extra_rows, "T": positions}

    def inside(self, part: Embedding) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        return {"norm": (part.norm, {"N": "w" if part.added_width else "D"})}

    def transfer(self, at: Transfer[Embedding]) -> None:
        super().transfer(at)
        fill_tokens(self, at, "token.weight")


def fill_tokens(kind: Transplant[Any], at: Transfer[Any], name: str) -> None:
    """Set the rows of new tokens (V, or V and features) to means of old rows."""
    entries, spelling = kind.entries(at), {} if at.cuts.vocabulary is None else at.cuts.vocabulary.pieces
    rows = [row for row, index in enumerate(entries.indices["V"]) if index == NEW]
    if not rows or name not in at.tensors or name not in at.donated:
        return
    if not at.tensors[name].is_meta:
        # all of the donor's rows, with the features of the new model
        all_rows = Entries(entries.sizes, {**entries.indices, "V": range(entries.sizes["V"])})
        layout = " ".join(["V", *kind.all_layouts(at.new)[name].split()[1:]])
        table = all_rows.taken(at.donated[name], layout)
        table = table.masked_fill(all_rows.are_new(layout, layout, table.device), 0.0)
        mean = table.mean(0)
        for row in rows:
            at.tensors[name][row] = table[list(spelling[row])].mean(0) if row in spelling else mean
    of = "of the tokens that spell them, or of all" if spelling else "of all others"
    at.note(name, f"rows of new tokens are the mean {of}")
