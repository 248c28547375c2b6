"""Context parallelism: the share of one process in the positions of each sequence.

Sequences are split into 2 N pieces. Process n of N computes pieces n and 2 N - 1 - n, so that all processes compute
the same number of pairs under a causal mask. Only attention needs other positions: it gathers all keys and values.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


class PositionShares(ABC):
    """Positions of each sequence that this process computes."""

    def __init__(self, rank: int, size: int) -> None:
        self.size, self.pieces = size, (rank, 2 * size - 1 - rank)

    def own(self, x: Tensor) -> Tensor:
        """Select this process's positions of whole sequences, (B, S, ...)."""
        pieces = x.chunk(2 * self.size, dim=1)
        return torch.cat([pieces[index] for index in self.pieces], dim=1)

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Gather all positions, in order, along the third dimension, which holds the positions of this process."""

    def in_order(self, x: Tensor) -> Tensor:
        # The third dimension has the two pieces of each process, process by process.
        pieces = x.chunk(2 * self.size, dim=2)  # 0, 2 N - 1, 1, 2 N - 2, ...
        return torch.cat((*pieces[0::2], *reversed(pieces[1::2])), dim=2)

    def places(self, length: int) -> Iterator[slice]:
        """Yield the slices of a sequence of `length` positions that this process computes."""
        size = length // (2 * self.size)
        yield from (slice(piece * size, (piece + 1) * size) for piece in self.pieces)


@dataclass(frozen=True)
class SharedRows:
    """Positions of whole sequences, of which this process computes a part."""

    shares: PositionShares  # which positions this process has
    positions: Int[Tensor, "b S"]  # of all tokens
    document_ids: Int[Tensor, "B S"] | None  # of all tokens, if several documents are packed into a row
