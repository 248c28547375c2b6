"""One layer: the wiring decides where norms and residuals go around the two contents."""

from jaxtyping import Float
from torch import Tensor, nn

from archetype.parts.span import Span
from archetype.parts.state import LayerState

Mixed = tuple[Float[Tensor, "B T D"], LayerState | None]


class _Block(nn.Module):
    """A mixer and a feed-forward part with their norms; what stands between them is the subclass."""

    def __init__(
        self,
        mixer_norm: nn.Module,
        mixer: nn.Module,
        feedforward_norm: nn.Module | None,
        feedforward: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.mixer_norm = mixer_norm
        self.mixer = mixer
        self.feedforward_norm = feedforward_norm
        self.feedforward = feedforward
        self.dropout = nn.Dropout(dropout)


class PreNormBlock(_Block):
    """x + F(norm(x)), for the mixer and then the feed-forward part (Xiong 2020)."""

    feedforward_norm: nn.Module

    def forward(self, x: Float[Tensor, "B T D"], span: Span, state: LayerState | None = None) -> Mixed:
        mixed, state = self.mixer(self.mixer_norm(x), span, state)
        x = x + self.dropout(mixed)
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        return x, state


class PostNormBlock(_Block):
    """norm(x + F(x)), for the mixer and then the feed-forward part (Vaswani 2017)."""

    feedforward_norm: nn.Module

    def forward(self, x: Float[Tensor, "B T D"], span: Span, state: LayerState | None = None) -> Mixed:
        mixed, state = self.mixer(x, span, state)
        x = self.mixer_norm(x + self.dropout(mixed))
        x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x, state


class ParallelBlock(_Block):
    """x + mixer(norm(x)) + feedforward(norm'(x)); without a norm of its own, the second reads the first's."""

    def forward(self, x: Float[Tensor, "B T D"], span: Span, state: LayerState | None = None) -> Mixed:
        normed = self.mixer_norm(x)
        mixed, state = self.mixer(normed, span, state)
        fed = self.feedforward(self.feedforward_norm(x) if self.feedforward_norm else normed)
        return x + self.dropout(mixed) + self.dropout(fed), state
