"""The base of all models that predict the next token."""

import torch

from archetype.models import spec
from archetype.models.output import Output, TokenModel
from archetype.nn.cache import LayerState, State
from archetype.nn.context import Lengths, Tokens


class CausalModel(TokenModel):
    """Base of models that give logits of the next token, with or without a state of what came before."""

    spec: spec.CausalSpec

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """The state of each layer before a text."""
        raise NotImplementedError

    def new_state(self, batch: int, capacity: int | None = None, dtype: torch.dtype | None = None) -> State:
        """The state of rows that are about to begin.

        Args:
            batch: number of rows.
            capacity: tokens of the longest row (absent: the context length).
            dtype: of the cache (absent: the model's).
        """
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        layers = self.new_layers(batch, capacity, dtype or self.dtype, self.device)
        return State(torch.zeros(batch, dtype=torch.long, device=self.device), layers, capacity)

    def forward(
        self,
        tokens: Tokens,
        state: State | None = None,
        num_tokens: Lengths | None = None,
        last_only: bool = False,
        with_logits: bool = True,
    ) -> Output:
        """Logits of the token after each position, (B, T, V), and the state after these tokens.

        Args:
            tokens: the new tokens of each row, padded at the end where rows differ.
            state: what came before; it is spent, and `output.state` replaces it.
            num_tokens: how many of each row's tokens are not padding (absent: all).
            last_only: only the logits after each row's last token, (B, 1, V).
            with_logits: whether the head is computed, and not only the vectors that it reads.
        """
        raise NotImplementedError
