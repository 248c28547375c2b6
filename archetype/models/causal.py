"""What all models have in common that write text, token by token."""

from abc import abstractmethod
from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec as specs
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext


class CausalModel(nn.Module):
    """Logits of the next token, with or without a state of what came before."""

    spec: specs.CausalSpec

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model is."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of its weights."""

    @abstractmethod
    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """The state of each layer before a text."""

    @abstractmethod
    def read(
        self, tokens: Int[Tensor, "B T"], context: ForwardContext, state: State | None, last_only: bool
    ) -> tuple[Float[Tensor, "B t V"], list[LayerState]]:
        """Logits after each position, or after each row's last one, and each layer's state after these tokens."""

    def new_state(self, batch: int, capacity: int | None = None, dtype: torch.dtype | None = None) -> State:
        """The state of rows that are about to begin.

        Args:
            batch: number of rows.
            capacity: tokens of the longest row (absent: the context length).
            dtype: of what is remembered (absent: the model's).
        """
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        layers = self.new_layers(batch, capacity, dtype or self.dtype, self.device)
        return State(torch.zeros(batch, dtype=torch.long, device=self.device), layers, capacity)

    @overload
    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: None = None,
        num_tokens: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
        losses: list[Tensor] | None = None,
    ) -> Float[Tensor, "B t V"]: ...

    @overload
    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State,
        num_tokens: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
    ) -> tuple[Float[Tensor, "B t V"], State]: ...

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        num_tokens: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
        losses: list[Tensor] | None = None,
    ) -> Float[Tensor, "B t V"] | tuple[Float[Tensor, "B t V"], State]:
        """Logits of the token after each position; with a state, also the state after these tokens.

        Args:
            tokens: the new tokens of each row, padded at the end where rows differ.
            state: what came before; its buffers are written in place and the state returned replaces it.
            num_tokens: how many of each row's tokens are no padding (absent: all).
            last_only: only the logits after each row's last token, t = 1.
            losses: is given what parts add to the loss that is trained on, such as a balance of experts.
        """
        context = ForwardContext.of(tokens, state.lengths if state else None, num_tokens)
        logits, layers = self.read(tokens, context, state, last_only)
        if losses is not None:
            losses += context.losses
        return (logits, state.advanced(context.ends, layers)) if state else logits
