"""Multi-token prediction: blocks that predict tokens after the next, for a training loss or speculative decoding."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.models.block.module import build_block
from archetype.models.further_tokens.spec import FurtherTokens as FurtherTokensSpec
from archetype.models.stack.module import places_of
from archetype.models.stack.spec import StackView
from archetype.nn.cache import write_slots
from archetype.nn.context import ForwardContext, Lengths, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.registry import build_norm
from archetype.weights.linear import Linear


@dataclass
class HiddenCache(LayerState):
    """Cache of the vectors that the head reads: slot s holds position s."""

    can_shorten: ClassVar[bool] = True  # slot s always holds position s
    vectors: Float[Tensor, "B 1 S D"]

    def append(self, x: Vectors, context: ForwardContext) -> None:
        write_slots(self.vectors, x[:, None], context)

    def narrow(self, slots: int) -> "HiddenCache":
        return HiddenCache(self.vectors[:, :, :slots])

    def read(self, starts: Lengths, count: int) -> Vectors:
        """Return the vectors of `count` positions from `starts` on; undefined beyond the buffer."""
        positions = starts[:, None] + torch.arange(count, device=starts.device)  # (B, count)
        rows = torch.arange(len(starts), device=starts.device)[:, None]
        return self.vectors[rows, 0, positions.clamp(max=self.vectors.shape[2] - 1)]  # (B, count, D)


class FurtherTokens(nn.Module):
    """Multi-token prediction: block k computes the head's input for the token k positions after the next.

    The head's input for the next token is h^0. Block k computes (DeepSeek-AI 2024b, equation 21)

        h^k_i = norm(block(projection([norm(h^(k-1)_i); norm(embedding of token i + k)])))

    from which the head computes the logits of token i + k + 1.
    """

    def __init__(self, further: FurtherTokensSpec, stack: StackView) -> None:
        super().__init__()
        self.d_model = d = stack.d_model
        each = range(further.count)
        self.hidden_norms, self.embedding_norms, self.final_norms = (
            nn.ModuleList(build_norm(further.norm, d) for _ in each) for _ in range(3)
        )
        self.projections = nn.ModuleList(Linear(2 * d, d, bias=False) for _ in each)
        self.blocks = nn.ModuleList(map(build_block, stack.layers, places_of(stack)))

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """Return the states for speculative decoding: the head's inputs, and the state of each block."""
        vectors = torch.zeros(batch, 1, capacity, self.d_model, dtype=dtype, device=device)
        states = [block.new_state(batch, capacity, dtype, device) for block in self.blocks]  # type: ignore[operator]
        return [HiddenCache(vectors), *states]

    def forward(self, hidden: Vectors, embedded: Vectors, context: ForwardContext) -> tuple[Vectors, ...]:
        """Return the head's inputs for each predicted token over whole sequences, (B, T, D) each.

        At the last positions of a row, whose further tokens are beyond its end, they are undefined and never read.

        Args:
            hidden: the head's inputs for the next token.
            embedded: embeddings of the tokens.
        """
        vectors = []
        for index in range(len(self.blocks)):
            # at position i the embedding of token i + k, k = index + 1; rolled-in embeddings are never used
            hidden = self.step(index, hidden, embedded.roll(-1 - index, dims=1), context)
            vectors.append(hidden)
        return tuple(vectors)

    def step(
        self, index: int, hidden: Vectors, embedded: Vectors, context: ForwardContext, state: LayerState | None = None
    ) -> Vectors:
        """Return the head's inputs for one more predicted token, (B, T, D).

        Args:
            hidden: the head's inputs for the previous token.
            embedded: embedding of that token.
            context: positions of `hidden`.
            state: state of the block (absent: whole sequences).
        """
        read = self.hidden_norms[index](hidden, context), self.embedding_norms[index](embedded, context)
        # (B, T, 2 D) to (B, T, D), then the block
        x = self.blocks[index](self.projections[index](torch.cat(read, dim=-1)), context, state)
        return self.final_norms[index](x, context)
