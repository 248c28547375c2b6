"""The n-gram model: the next token from the newest n."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec as specs
from archetype.models.causal import CausalModel
from archetype.models.embedding import Embedding
from archetype.models.heads import LanguageModelHead
from archetype.models.stack import last
from archetype.nn.activation import activation
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext


@dataclass
class NGramState(LayerState):
    """The n - 1 newest tokens, the newest last; those before a text's start are arbitrary."""

    tokens: Int[Tensor, "B places"]


class NGram(CausalModel):
    """The vectors of the n newest tokens side by side, through hidden layers to logits (Bengio 2003, equation 1)."""

    spec: specs.NGram

    def __init__(self, model: specs.NGram) -> None:
        super().__init__()
        self.spec = model
        self.embedding = Embedding(specs.Embedding(), model.vocab_size, model.context_length, model.d_model)
        widths = (model.n * model.d_model, *model.hidden)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, model.hidden, strict=False))
        self.activation = activation(model.activation)
        self.lm_head = LanguageModelHead(model.head, model.vocab_size, model.width)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self.embedding.token.weight.dtype

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """Tokens, whose number follows from n alone."""
        return [NGramState(torch.zeros(batch, self.spec.n - 1, dtype=torch.long, device=device))]

    def read(
        self, tokens: Int[Tensor, "B T"], context: ForwardContext, state: State | None, last_only: bool
    ) -> tuple[Float[Tensor, "B t V"], list[LayerState]]:
        """Logits after each position, or after each row's last one, and the tokens that the next will see."""
        text = torch.cat((_earlier(tokens, state, self.spec.n), tokens), dim=1)
        x = self._contexts(text, context)
        x = last(x, context) if last_only else x
        for layer in self.hidden:
            x = self.activation(layer(x))
        own = self.lm_head.weight
        return self.lm_head(x, self.embedding.token.weight if own is None else own), [_newest(text, context)]

    def _contexts(self, text: Int[Tensor, "B N"], context: ForwardContext) -> Float[Tensor, "B T nD"]:
        """For each position its vectors and those of the n - 1 before it, the oldest first; zeros before the start."""
        places = torch.arange(text.shape[1], device=text.device) - (self.spec.n - 1)
        written = context.shared_positions[:, :1] + places >= 0
        vectors: Tensor = self.embedding.token(text) * written[..., None]
        return vectors.unfold(1, self.spec.n, 1).transpose(2, 3).flatten(2)


def _earlier(tokens: Int[Tensor, "B T"], state: State | None, n: int) -> Int[Tensor, "B places"]:
    """The n - 1 tokens before the new ones."""
    if state is None:
        return tokens.new_zeros(tokens.shape[0], n - 1)
    (newest,) = state.layers
    assert isinstance(newest, NGramState)
    return newest.tokens


def _newest(text: Int[Tensor, "B N"], context: ForwardContext) -> NGramState:
    """The n - 1 tokens up to each row's end, of a text that begins n - 1 before the context."""
    new = context.positions.shape[1]
    places = torch.arange(text.shape[1] - new, device=text.device)
    ends = torch.full_like(text[:, 0], new) if context.num_tokens is None else context.num_tokens
    return NGramState(text.gather(1, ends[:, None] + places))
