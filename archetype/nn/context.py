"""The tokens of one pass: where each stands, which are padding, and what all layers share."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

T = TypeVar("T")


@dataclass
class EncoderOutput:
    """What an encoder made of a source text: its vectors, and how many of each row are no padding (None: all)."""

    vectors: Float[Tensor, "B S D"]
    num_tokens: Int[Tensor, "B"] | None


@dataclass
class ForwardContext:
    """What every layer of one pass shares.

    `positions` num_tokens from 0 at a row's first token ever; padding, always at a row's end, goes on counting, so that
    what it leaves in a state lies beyond the row's length, where no mask looks and the next tokens overwrite it.
    """

    positions: Int[Tensor, "B T"]
    num_tokens: Int[Tensor, "B"] | None  # tokens of each row that are no padding; None: all T of every row
    starts_at_zero: bool  # every row starts at position 0 and sees nothing but this context
    source: EncoderOutput | None = None  # what cross-attention looks at, where no state remembers it
    position_bias: nn.Module | None = None  # the stack's own table
    losses: list[Tensor] = field(default_factory=list)  # what parts add to the loss that is trained on
    computed: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        lengths: Int[Tensor, "B"] | None = None,
        num_tokens: Int[Tensor, "B"] | None = None,
    ) -> "ForwardContext":
        """The context of `tokens`, (B, T) or (B, T, D), after `lengths` earlier ones (None: they are the first)."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        if lengths is None:
            return cls(steps.expand(tokens.shape[:2]), num_tokens, starts_at_zero=True)
        return cls(lengths[:, None] + steps, num_tokens, starts_at_zero=False)

    @property
    def ends(self) -> Int[Tensor, "B"]:
        """Each row's length after this context."""
        first = self.positions[:, 0]
        return first + (self.positions.shape[1] if self.num_tokens is None else self.num_tokens)

    @property
    def valid(self) -> Bool[Tensor, "B T"] | None:
        """False where a token is padding; None where none is."""
        if self.num_tokens is None:
            return None
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.num_tokens[:, None]

    @property
    def encoder_output(self) -> EncoderOutput:
        """The source, where there is one."""
        assert self.source is not None, "cross-attention needs a source, or a state that remembers one"
        return self.source

    @property
    def shared_positions(self) -> Int[Tensor, "b T"]:
        """The positions, as one row where all rows start alike."""
        return self.positions[:1] if self.starts_at_zero else self.positions

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of `compute`, shared by all who ask under the same key during this pass."""
        if key not in self.computed:
            self.computed[key] = compute()
        result: T = self.computed[key]
        return result
