"""One layer: the wiring decides where norms and residuals go around the contents."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import DecoderBlockState, LayerState
from archetype.nn.context import ForwardContext
from archetype.nn.cross_attention import CrossAttention

Mixed = tuple[Float[Tensor, "B T D"], LayerState | None]


@dataclass
class Contents:
    """What a block is made of: the parts that its wiring connects."""

    mixer: nn.Module
    cross: CrossAttention | None
    feedforward: nn.Module | None
    dropout: float
    residual_scale: float = 1.0


class Block(nn.Module):
    """A mixer, perhaps a look at a source, perhaps a feed-forward part, one after the other.

    A wiring says what a content is given of x, and how x goes on with what the content found; what stands here is the
    plain one.
    """

    norms: tuple[str, ...] = ("norm",)  # which norms each content has

    def __init__(self, contents: Contents, make_norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        for name in ("mixer", "cross", "feedforward"):
            if (content := getattr(contents, name)) is None:
                continue
            for norm in self.norms:
                self.add_module(f"{name}_{norm}", make_norm())
            self.add_module(name, content)
        self.mixer, self.cross, self.feedforward = contents.mixer, contents.cross, contents.feedforward
        self.dropout = nn.Dropout(contents.dropout)
        self.residual_scale = contents.residual_scale

    def forward(self, x: Float[Tensor, "B T D"], context: ForwardContext, state: LayerState | None = None) -> Mixed:
        """The vectors after this layer, and its state after them."""
        own = state.mixer if isinstance(state, DecoderBlockState) else state
        mixed, own = self.mixer(self.given("mixer", x, context), context, own)
        x = self.joined("mixer", x, mixed, context)
        if self.cross is not None:
            keys = state.cross if isinstance(state, DecoderBlockState) else self.cross.read(context.encoder_output)
            x = self.joined("cross", x, self.cross(self.given("cross", x, context), context, keys), context)
            own = DecoderBlockState(own, keys) if own is not None else None
        if self.feedforward is not None:
            x = self.joined("feedforward", x, self.feedforward(self.given("feedforward", x, context), context), context)
        return x, own

    def given(self, content: str, x: Tensor, context: ForwardContext) -> Tensor:
        """What the content reads: in plain wiring, what is there."""
        return x

    def joined(self, content: str, x: Tensor, found: Tensor, context: ForwardContext) -> Tensor:
        """What the next content's `given` starts from: in plain wiring what was found, of a source beside who asked."""
        found = self.scaled(found)
        return x + found if content == "cross" else found

    def scaled(self, found: Tensor) -> Tensor:
        """What a content found, as it is added."""
        y: Tensor = self.dropout(found)
        return y if self.residual_scale == 1.0 else y * self.residual_scale

    def norm(self, content: str, x: Tensor, context: ForwardContext, which: str = "norm") -> Tensor:
        """X through the content's norm."""
        y: Tensor = getattr(self, f"{content}_{which}")(x, context.valid)
        return y


class PreNormBlock(Block):
    """x + F(norm(x)) (Xiong 2020)."""

    def given(self, content: str, x: Tensor, context: ForwardContext) -> Tensor:
        return self.norm(content, x, context)

    def joined(self, content: str, x: Tensor, found: Tensor, context: ForwardContext) -> Tensor:
        return x + self.scaled(found)


class PostNormBlock(Block):
    """norm(x + F(x)) (Vaswani 2017)."""

    def joined(self, content: str, x: Tensor, found: Tensor, context: ForwardContext) -> Tensor:
        return self.norm(content, x + self.scaled(found), context)


class SandwichBlock(Block):
    """x + norm'(F(norm(x))) (Ding 2021; Gemma 2)."""

    norms = ("norm", "post_norm")

    def given(self, content: str, x: Tensor, context: ForwardContext) -> Tensor:
        return self.norm(content, x, context)

    def joined(self, content: str, x: Tensor, found: Tensor, context: ForwardContext) -> Tensor:
        return x + self.scaled(self.norm(content, found, context, "post_norm"))


class OutputNormBlock(Block):
    """x + norm(F(x)) (Liu 2021; OLMo 2)."""

    def joined(self, content: str, x: Tensor, found: Tensor, context: ForwardContext) -> Tensor:
        return x + self.scaled(self.norm(content, found, context))


class PlainBlock(Block):
    """F(x); what cross-attention finds is added to the vector that asked (Luong 2015, equation 5)."""

    norms = ()


class ParallelBlock(Block):
    """x + mixer(norm(x)) + feedforward(norm'(x)); with a shared norm, the second reads the first's."""

    def __init__(self, contents: Contents, make_norm: Callable[[], nn.Module], shared_norm: bool) -> None:
        super().__init__(contents, make_norm)
        if shared_norm:
            del self.feedforward_norm
        self.shared_norm = shared_norm

    def forward(self, x: Float[Tensor, "B T D"], context: ForwardContext, state: LayerState | None = None) -> Mixed:
        """The vectors after this layer, and its state after them."""
        normed = self.norm("mixer", x, context)
        mixed, state = self.mixer(normed, context, state)
        assert self.feedforward is not None
        fed = self.feedforward(normed if self.shared_norm else self.norm("feedforward", x, context), context)
        return x + self.scaled(mixed) + self.scaled(fed), state
