"""The tokens of one pass: where each stands, which are padding, and what all layers compute only once."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

T = TypeVar("T")


@dataclass
class Span:
    """What every layer of one pass shares.

    `positions` counts from 0 at a row's first token ever; padding, always at a row's end, goes on counting, so that
    what it leaves in a state lies beyond the row's length, where no mask looks and the next tokens overwrite it.
    """

    positions: Int[Tensor, "B T"]
    counts: Int[Tensor, "B"] | None  # tokens of each row that are no padding; None: all T of every row
    fresh: bool  # every row starts at position 0 and sees nothing but this span
    computed: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, "B"] | None = None,
        counts: Int[Tensor, "B"] | None = None,
    ) -> "Span":
        """The span of `tokens` after `lengths` earlier ones (None: they are the first)."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        if lengths is None:
            return cls(steps.expand(tokens.shape), counts, fresh=True)
        return cls(lengths[:, None] + steps, counts, fresh=False)

    @property
    def ends(self) -> Int[Tensor, "B"]:
        """Each row's length after this span."""
        first = self.positions[:, 0]
        return first + (self.positions.shape[1] if self.counts is None else self.counts)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of `compute`, shared by all who ask under the same key during this pass."""
        if key not in self.computed:
            self.computed[key] = compute()
        result: T = self.computed[key]
        return result
