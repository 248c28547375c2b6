"""Padding: transformers pads anywhere and says where by a mask; here tokens stand at the beginning of their row."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.nn.context import Lengths


class Rows(NamedTuple):
    """Where the tokens of each row stand among padding.

    Attributes:
        order: for each place of the moved rows the column it is taken from, (B, T); None: every row is as it was.
        num_tokens: of each row that are not padding; None: all.
    """

    order: Tensor | None
    num_tokens: Lengths | None

    @classmethod
    def of(cls, mask: Tensor | None, length: int) -> Self:
        """The rows of a mask's last columns.

        Args:
            mask: 1 at tokens, (B, S) with S >= length; None: nothing is padding.
            length: T, columns that are read now.

        Raises:
            SpecError: the mask is not of rows and columns, or has fewer columns than are read.
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
        """Tokens or vectors, (B, T, ...), with those of each row at its beginning."""
        return x if self.order is None else x.gather(1, _like(self.order, x))

    def restored(self, x: Tensor) -> Tensor:
        """Vectors or logits where their tokens stood."""
        return x if self.order is None else torch.empty_like(x).scatter(1, _like(self.order, x), x)

    def positions(self, lengths: Lengths | None, shape: tuple[int, int]) -> Tensor:
        """Of each column its token's place in its row; of padding any number.

        Args:
            lengths: tokens of each row that were read before (None: none).
            shape: rows and columns.
        """
        steps = torch.arange(shape[1], device=None if self.order is None else self.order.device).expand(shape)
        steps = self.restored(steps.contiguous())
        return steps if lengths is None else steps + lengths[:, None]

    def is_token(self, shape: tuple[int, int]) -> Tensor | None:
        """Which columns are no padding; None: all."""
        if self.num_tokens is None:
            return None
        valid = torch.arange(shape[1], device=self.num_tokens.device) < self.num_tokens[:, None]
        return self.restored(valid)


def _like(order: Tensor, x: Tensor) -> Tensor:
    return order.reshape(order.shape + (1,) * (x.dim() - 2)).expand_as(x)
