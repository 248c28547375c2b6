"""Padding: transformers pads anywhere and passes a mask, but Archetype's sequences start at the first column."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.nn.context import Lengths


class Rows(NamedTuple):
    """Columns that contain the tokens of each sequence.

    Attributes:
        order: original column of each column after the move, (B, T); None if no column moves.
        num_tokens: number of tokens without padding, (B,); None if all columns are tokens.
    """

    order: Tensor | None
    num_tokens: Lengths | None

    @classmethod
    def of(cls, mask: Tensor | None, length: int) -> Self:
        """Return the rows for the last `length` (T) columns of a mask.

        Args:
            mask: (B, S) with S >= T, 1 at tokens; None if there is no padding.

        Raises:
            SpecError: the mask is not two-dimensional, or has fewer than T columns.
        """
        if mask is None:
            return cls(None, None)
        if mask.dim() != 2 or mask.shape[1] < length:
            cause = f"has shape {tuple(mask.shape)} for {length} tokens"
            raise SpecError("attention_mask", cause, "use (batch, tokens), 1 at tokens and 0 at padding")
        is_token = mask[:, mask.shape[1] - length :] != 0  # (B, T), without the columns in the cache
        if bool(is_token.all()):
            return cls(None, None)
        counts = is_token.sum(1)  # (B,)
        is_in_order = is_token == (torch.arange(length, device=mask.device) < counts[:, None])
        # a stable sort moves tokens to the front and keeps their order
        order = None if bool(is_in_order.all()) else is_token.int().argsort(dim=1, descending=True, stable=True)
        return cls(order, counts)

    def moved(self, x: Tensor) -> Tensor:
        """Move tokens or vectors, (B, T, ...), so that sequences start at the first column."""
        return x if self.order is None else x.gather(1, _like(self.order, x))

    def restored(self, x: Tensor) -> Tensor:
        """Move vectors or logits, (B, T, ...), back to their original columns."""
        return x if self.order is None else torch.empty_like(x).scatter(1, _like(self.order, x), x)


def _like(order: Tensor, x: Tensor) -> Tensor:
    return order.reshape(order.shape + (1,) * (x.dim() - 2)).expand_as(x)  # (B, T) -> the shape of x
