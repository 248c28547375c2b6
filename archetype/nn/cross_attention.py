"""Attention from a text that is being written to its source."""

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.nn import masks
from archetype.nn.attention import MultiHead
from archetype.nn.cache import CrossKVCache
from archetype.nn.context import EncoderOutput, ForwardContext
from archetype.nn.scaled_dot_product import attend


class CrossAttention(MultiHead):
    """Queries from the target, keys and values from an encoder's vectors (Bahdanau 2014; Vaswani 2017)."""

    def read(self, source: EncoderOutput) -> CrossKVCache:
        """The source's keys and values, which stay the same for every token of the target."""
        rows, length = source.vectors.shape[:2]
        num_tokens = source.num_tokens
        if num_tokens is None:
            num_tokens = torch.full((rows,), length, device=source.vectors.device)
        return CrossKVCache(*self.keys_and_values(source.vectors), num_tokens)

    def forward(
        self, x: Float[Tensor, "B T D"], context: ForwardContext, source: CrossKVCache
    ) -> Float[Tensor, "B T D"]:
        """What each position of the target finds in the source."""
        places = torch.arange(source.keys.shape[2], device=x.device)
        present = context.cached("source", lambda: masks.present(source.num_tokens, places))
        return self.joined(attend(self.queries(x), source.keys, source.values, self.scoring, present))
