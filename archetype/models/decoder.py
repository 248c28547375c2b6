"""The decoder: embedding, blocks, a norm, and logits of the next token."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype import spec as specs
from archetype.models.causal import CausalModel
from archetype.models.embedding import Embedding, check_positions_fit
from archetype.models.heads import LanguageModelHead
from archetype.models.stack import Stack, last
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext


class Decoder(Stack, CausalModel):
    """A stack of blocks in which no position sees a later one (Radford 2018)."""

    spec: specs.Decoder

    def __init__(self, decoder: specs.Decoder) -> None:
        super().__init__(decoder.stacks[0])
        self.spec = decoder
        self.embedding = Embedding(decoder.embedding, decoder.vocab_size, decoder.context_length, decoder.d_model)
        self.lm_head = LanguageModelHead(decoder.head, decoder.vocab_size, decoder.d_model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self.embedding.token.weight.dtype

    def read(
        self, tokens: Int[Tensor, "B T"], context: ForwardContext, state: State | None, last_only: bool
    ) -> tuple[Float[Tensor, "B t V"], list[LayerState]]:
        """Logits after each position, or after each row's last one, and each layer's state after these tokens."""
        check_positions_fit(self.spec, tokens.shape[1])
        x, layers = self.run(self.embedding(tokens, context), context, state)
        x = self.final_norm(last(x, context)) if last_only else self.final_norm(x, context.valid)
        return self.lm_head(x, self.embedding.token.weight), layers
