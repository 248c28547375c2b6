"""Attention from a text that is being written to its source."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.nn import masks
from archetype.nn.attention import MultiHead
from archetype.nn.cache import SourceKeys
from archetype.nn.context import Source, Span
from archetype.nn.scaled_dot_product import attend


class CrossAttention(MultiHead):
    """Queries from the target, keys and values from an encoder's vectors (Bahdanau 2014; Vaswani 2017)."""

    def read(self, source: Source) -> SourceKeys:
        """The source's keys and values, which stay the same for every token of the target."""
        rows, length = source.vectors.shape[:2]
        counts = source.counts
        if counts is None:
            counts = torch.full((rows,), length, device=source.vectors.device)
        return SourceKeys(*self.keys_and_values(source.vectors), counts)

    def forward(self, x: Float[Tensor, "B T D"], span: Span, source: SourceKeys) -> Float[Tensor, "B T D"]:
        """What each position of the target finds in the source."""
        places = torch.arange(source.keys.shape[2], device=x.device)
        present = span.once("source", lambda: masks.present(source.counts, places))
        return self.joined(attend(self.queries(x), source.keys, source.values, self.scoring, present))
