"""The decoder: embedding, blocks, a norm, and logits of the next token."""

from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec
from archetype.errors import SpecError
from archetype.model.embedding import Embedding
from archetype.model.heads import LanguageModelHead
from archetype.parts.build import build_block, build_norm
from archetype.parts.span import Span
from archetype.parts.state import LayerState, State


class Decoder(nn.Module):
    """A stack of blocks in which no position sees a later one (Radford 2018)."""

    def __init__(self, decoder: spec.Decoder) -> None:
        super().__init__()
        self.spec = decoder
        self.embedding = Embedding(decoder.embedding, decoder.vocab_size, decoder.context_length, decoder.d_model)
        self.blocks = nn.ModuleList(build_block(block, decoder.d_model) for block in decoder.layers)
        self.final_norm = build_norm(decoder.final_norm, decoder.d_model)
        self.lm_head = LanguageModelHead(decoder.head, decoder.vocab_size, decoder.d_model)

    def new_state(self, batch: int, capacity: int | None = None, dtype: torch.dtype | None = None) -> State:
        """An empty state for `batch` rows of at most `capacity` tokens (absent: the context length)."""
        weight = self.embedding.token.weight
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        layers: list[LayerState] = [
            block.mixer.new_state(batch, capacity, dtype or weight.dtype, weight.device)  # type: ignore[union-attr, operator]
            for block in self.blocks
        ]
        return State(torch.zeros(batch, dtype=torch.long, device=weight.device), layers, capacity)

    @overload
    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: None = None,
        counts: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "B t V"]: ...

    @overload
    def forward(
        self, tokens: Int[Tensor, "B T"], state: State, counts: Int[Tensor, "B"] | None = None, last_only: bool = False
    ) -> tuple[Float[Tensor, "B t V"], State]: ...

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        counts: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "B t V"] | tuple[Float[Tensor, "B t V"], State]:
        """Logits of the token after each position; with a state, also the state after these tokens.

        Args:
            tokens: the new tokens of each row, padded at the end where rows differ.
            state: what came before; its buffers are written in place and the state returned replaces it.
            counts: how many of each row's tokens are no padding (absent: all).
            last_only: only the logits after each row's last token, t = 1.
        """
        self._refuse_beyond_table(tokens.shape[1])
        span = Span.of(tokens, state.lengths if state else None, counts)
        x = self.embedding(tokens, span)
        layers: list[LayerState] = []
        for index, block in enumerate(self.blocks):
            x, layer = block(x, span, state.layers[index] if state else None)
            layers.append(layer)
        logits = self.lm_head(self.final_norm(_last(x, counts) if last_only else x), self.embedding.token.weight)
        return (logits, state.advanced(span.ends, layers)) if state else logits

    def _refuse_beyond_table(self, length: int) -> None:
        if isinstance(self.spec.embedding.position, spec.Learned) and length > self.spec.context_length:
            cause = f"{length} are more than the {self.spec.context_length} positions that were learned"
            raise SpecError("tokens", cause, "give fewer at once")


def _last(x: Float[Tensor, "B T D"], counts: Int[Tensor, "B"] | None) -> Float[Tensor, "B 1 D"]:
    """The last position of each row that is no padding."""
    if counts is None:
        return x[:, -1:]
    rows = torch.arange(x.shape[0], device=x.device)
    return x[rows, counts.clamp(min=1) - 1][:, None]
