"""The n-gram model: predicts the next token from the newest n tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.models.causal import CausalModel
from archetype.models.ngram.spec import NGram as NGramSpec
from archetype.models.output import Output
from archetype.nn.context import ForwardContext, Lengths, Tokens, last_tokens
from archetype.nn.layer_state import LayerState
from archetype.nn.registry import module_for
from archetype.nn.state import State
from archetype.parts.activation.module import activation
from archetype.parts.embedding.module import Embedding
from archetype.parts.embedding.spec import Embedding as EmbeddingSpec
from archetype.weights.linear import Linear


@dataclass
class NGramState(LayerState):
    """The newest n - 1 tokens, newest last; undefined before the start of a sequence."""

    tokens: Int[Tensor, "B newest"]


@module_for(NGramSpec)
class NGram(CausalModel):
    """Concatenated vectors of the newest n tokens, hidden layers, and logits (Bengio 2003, equation 1)."""

    spec: NGramSpec

    def __init__(self, model: NGramSpec) -> None:
        super().__init__()
        self.spec = model
        self.embedding = Embedding(EmbeddingSpec(), model.vocab_size, model.context_length, model.d_model)
        widths = (model.n * model.d_model, *model.hidden)
        self.hidden = nn.ModuleList(Linear(*pair) for pair in zip(widths, model.hidden, strict=False))
        self.activation = activation(model.activation)
        self.add_head(model.head, model.vocab_size, model.width)

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        # n - 1 tokens, whatever the capacity
        return [NGramState(torch.zeros(batch, self.spec.n - 1, dtype=torch.long, device=device))]

    def forward(
        self,
        tokens: Tokens,
        state: State | None = None,
        num_tokens: Lengths | None = None,
        last_only: bool = False,
        with_logits: bool = True,
    ) -> Output:
        """Return logits of the token after each position, (B, T, V), and the state; see `CausalModel`."""
        context = self.context(tokens, state.lengths if state else None, num_tokens)
        newest = self._newest(state)
        # ids of no effect: their vectors are masked
        before = tokens.new_zeros(tokens.shape[0], self.spec.n - 1) if newest is None else newest.tokens
        text = torch.cat((before, tokens), dim=1)  # (B, n - 1 + T)
        x = self.windows(text, context)  # (B, T, n D)
        x = last_tokens(x, context) if last_only else x
        for layer in self.hidden:
            x = self.activation(layer(x))  # (B, t, F)
        logits = self.lm_head(x, self.token_table) if with_logits else None  # (B, t, V)
        if state is None or newest is None:
            return Output(logits, hidden=x)
        ends = torch.full_like(text[:, 0], tokens.shape[1]) if num_tokens is None else num_tokens
        # (B, n - 1), before the padding of each row
        newest.tokens = text.gather(1, ends[:, None] + torch.arange(self.spec.n - 1, device=text.device))
        return Output(logits, state.advance(context.ends), hidden=x)

    def windows(self, text: Int[Tensor, "B S"], context: ForwardContext) -> Float[Tensor, "B T nD"]:
        """Concatenate the vectors of each position and the n - 1 before it, oldest first; zeros before the start."""
        offsets = torch.arange(text.shape[1], device=text.device) - (self.spec.n - 1)
        exists = context.shared_positions[:, :1] + offsets >= 0
        vectors: Tensor = self.embedding.token(text) * exists[..., None]  # (B, n - 1 + T, D)
        return vectors.unfold(1, self.spec.n, 1).transpose(2, 3).flatten(2)  # (B, T, D, n) to (B, T, n D)

    def _newest(self, state: State | None) -> NGramState | None:
        if state is None:
            return None
        (newest,) = state.layers
        assert isinstance(newest, NGramState)
        return newest
