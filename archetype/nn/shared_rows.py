"""Rows whose positions several processes share, as the layers of one process see them.

Of the 2 N pieces of a row, process n of N has pieces n and 2 N - 1 - n, so that under a causal mask all compute as many
pairs. All parts but attention compute each position by itself; attention gathers keys and values of all positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


class PositionShares(ABC):
    """The positions that this process has of every row.

    Args:
        number: of this process.
        size: how many processes there are.
    """

    def __init__(self, number: int, size: int) -> None:
        self.size, self.pieces = size, (number, 2 * size - 1 - number)

    def own(self, x: Tensor) -> Tensor:
        """Cut whole rows to the positions of this process: the second dimension."""
        pieces = x.chunk(2 * self.size, dim=1)
        return torch.cat([pieces[number] for number in self.pieces], dim=1)

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """All positions, the third dimension, in their order, of what each process has of them."""

    def in_order(self, x: Tensor) -> Tensor:
        """Positions, the third dimension, of which one process's two pieces follow another's, in their order."""
        pieces = x.chunk(2 * self.size, dim=2)  # 0, 2 N - 1, 1, 2 N - 2, ...
        return torch.cat((*pieces[0::2], *reversed(pieces[1::2])), dim=2)

    def places(self, length: int) -> Iterator[slice]:
        """Where each piece of this process stands in rows of so many positions."""
        size = length // (2 * self.size)
        yield from (slice(piece * size, (piece + 1) * size) for piece in self.pieces)


@dataclass(frozen=True)
class SharedRows:
    """Where all tokens of the rows stand, of which this process computes some.

    Attributes:
        shares: which positions this process has.
        positions: of all tokens.
        document_ids: the document of each token, where several stand in a row.
    """

    shares: PositionShares
    positions: Int[Tensor, "b S"]
    document_ids: Int[Tensor, "B S"] | None
