"""Padding: transformers pads anywhere and passes a mask; here, tokens start at the first column."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.nn.context import Lengths


class Rows(NamedTuple):
    """The columns of each sequence's tokens among padding.

    Attributes:
        order: for each column after the move, the original column, (B, T); None: nothing moves.
        num_tokens: of each sequence, without padding; None: all columns.
    """

    order: Tensor | None
    num_tokens: Lengths | None

    @classmethod
    def of(cls, mask: Tensor | None, length: int) -> Self:
        """Return the rows of a mask's last columns.

        Args:
            mask: 1 at tokens, (B, S) with S >= length; None: no padding.
            length: T, columns that are read now.

        Raises:
            SpecError: the mask is not two-dimensional, or has fewer columns than are read.
        """
        if mask is None:
            return cls(None, None)
        if mask.dim() != 2 or mask.shape[1] < length:
            cause = f"has shape {tuple(mask.shape)}, and {length} tokens are read"
            raise SpecError("attention_mask", cause, "give (rows, tokens), 1 for each token and 0 for padding")
        is_token = mask[:, mask.shape[1] - length :] != 0
        if bool(is_token.all()):
            return cls(None, None)
        counts = is_token.sum(1)
        is_in_order = is_token == (torch.arange(length, device=mask.device) < counts[:, None])
        order = None if bool(is_in_order.all()) else is_token.int().argsort(dim=1, descending=True, stable=True)
        return cls(order, counts)

    def moved(self, x: Tensor) -> Tensor:
        """Return tokens or vectors, (B, T, ...), moved to start at the first column."""
        return x if self.order is None else x.gather(1, _like(self.order, x))

    def restored(self, x: Tensor) -> Tensor:
        """Return vectors or logits at the original columns of their tokens."""
        return x if self.order is None else torch.empty_like(x).scatter(1, _like(self.order, x), x)

    def positions(self, lengths: Lengths | None, shape: tuple[int, int]) -> Tensor:
        """Return the position of each column's token in its sequence; arbitrary numbers at padding.

        Args:
            lengths: tokens of each sequence read earlier (None: none).
            shape: batch size and columns.
        """
        steps = torch.arange(shape[1], device=None if self.order is None else self.order.device).expand(shape)
        steps = self.restored(steps.contiguous())
        return steps if lengths is None else steps + lengths[:, None]

    def is_token(self, shape: tuple[int, int]) -> Tensor | None:
        """Return which columns are tokens, not padding; None: all."""
        if self.num_tokens is None:
            return None
        valid = torch.arange(shape[1], device=self.num_tokens.device) < self.num_tokens[:, None]
        return self.restored(valid)


def _like(order: Tensor, x: Tensor) -> Tensor:
    return order.reshape(order.shape + (1,) * (x.dim() - 2)).expand_as(x)
