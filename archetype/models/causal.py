"""Base class of models that predict the next token."""

import torch

from archetype.models import spec
from archetype.models.output import Output, TokenModel
from archetype.nn.context import Lengths, Tokens
from archetype.nn.layer_state import LayerState
from archetype.nn.state import State


class CausalModel(TokenModel):
    """Base class of models that compute logits of the next token, with or without a cached state."""

    spec: spec.CausalSpec

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """Return the state of each layer before the first token."""
        raise NotImplementedError

    def new_state(self, batch: int, capacity: int | None = None, dtype: torch.dtype | None = None) -> State:
        """Return the state of sequences before their first token.

        Args:
            capacity: maximal length of a sequence in tokens (absent: the context length).
            dtype: data type of the state (absent: the model's); keys and values have `cache_dtype` if it is set.
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
        """Return logits of the token after each position, (B, T, V), and the state after these tokens.

        Args:
            tokens: new tokens (B, T), padded at the end.
            state: state after the previous tokens; it is updated in place and must be replaced by `output.state`.
            num_tokens: number of tokens in each row, padding excluded (absent: no padding).
            last_only: compute only the logits after each row's last token, (B, 1, V).
            with_logits: whether to compute the head; otherwise only its input vectors.
        """
        raise NotImplementedError
