"""Layouts: tensor dimensions as letters, and the entries of an old tensor that a new one takes.

"HP D" is a matrix from D features to H heads of P features, "2I D" are two matrices of I rows, one below the other, and
"H(P|Q) C" is a matrix from C features to H heads of P and then Q features.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

NEW = -1  # index of an entry that the old tensor does not have


@dataclass(frozen=True)
class Entries:
    """The old index of every new entry of dimensions.

    Attributes:
        sizes: old sizes, by letter.
        indices: old index of each new entry, by letter; `NEW` for entries that the old dimension does not have.
    """

    sizes: Mapping[str, int]
    indices: Mapping[str, Sequence[int]]

    def of(self, dimension: str) -> tuple[int, Sequence[int]]:
        """Return the old size of a dimension such as "H(P|Q)", and the old index of each new entry."""
        total, indices = 0, []
        for term in re.split(r"\|(?![^()]*\))", dimension):
            count, chosen = 1, [0]
            for factor in re.findall(r"\([^()]*\)|.", term):
                size, inner = self._of_factor(factor)
                chosen = [NEW if NEW in (i, j) else i * size + j for i in chosen for j in inner]
                count *= size
            indices += [i if i == NEW else total + i for i in chosen]
            total += count
        return total, indices

    def _of_factor(self, factor: str) -> tuple[int, Sequence[int]]:
        if factor.isdigit():
            return int(factor), range(int(factor))
        return self.of(factor[1:-1]) if factor.startswith("(") else (self.sizes[factor], self.indices[factor])

    def old_shape(self, layout: str) -> tuple[int, ...]:
        """Return the old shape of a tensor with a layout."""
        return tuple(self.of(dimension)[0] for dimension in layout.split())

    def are_same(self, letter: str) -> bool:
        """Return whether a dimension has the old entries in their order."""
        return list(self.indices[letter]) == list(range(self.sizes[letter]))

    def are_cut(self, letter: str) -> bool:
        """Return whether an old entry of a dimension is left out."""
        return not set(range(self.sizes[letter])) <= set(self.indices[letter])

    def taken(self, tensor: Tensor, layout: str) -> Tensor:
        """Return the old entries of a tensor; the values of new ones mean nothing."""
        for dim, dimension in enumerate(layout.split()):
            index = torch.tensor(self.of(dimension)[1], dtype=torch.long, device=tensor.device)
            tensor = tensor.index_select(dim, index.clamp(min=0))
        return tensor

    def are_new(self, layout: str, letters: str, device: torch.device) -> Tensor:
        """Return a mask of the entries of a tensor that are new along some letters."""
        others = {letter: [0] * len(indices) for letter, indices in self.indices.items() if letter not in letters}
        along = Entries(self.sizes, {**self.indices, **others})
        masks = (torch.tensor(along.of(dimension)[1], device=device) == NEW for dimension in layout.split())
        return reduce(torch.logical_or, torch.meshgrid(*masks, indexing="ij"))


def letters_of(layout: str) -> list[str]:
    """Return the letters of a layout, each once."""
    return [letter for letter in dict.fromkeys(layout) if letter.isalpha()]


def best(old: int, new: int, ranks: Tensor | None = None) -> Sequence[int]:
    """Return which entries of a dimension are kept, in their order, followed by new ones."""
    if ranks is not None and new < old:
        return sorted(ranks.topk(new).indices.tolist())
    return [*range(min(old, new)), *[NEW] * (new - old)]
