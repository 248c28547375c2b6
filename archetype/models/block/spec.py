"""A block: its contents, and apart from them how norms and residuals wire them."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import NoFeedForward
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import NoPosition
from archetype.roles.feedforward import AnyFeedForward
from archetype.roles.mixer import AnyMixer
from archetype.roles.norm import AnyNorm
from archetype.roles.wiring import AnyWiring, Wiring
from archetype.spec.base import Flag, Positive, Probability, Spec, invalid
from archetype.spec.kinds import part

__all__ = [
    "Block",
    "OutputNorm",
    "ParallelResidual",
    "Plain",
    "PostNorm",
    "PreNorm",
    "SandwichNorm",
]


@part
class PreNorm(Wiring):
    """x + F(norm(x)) for each content in turn (Xiong 2020).

    Attributes:
        norm: of each content's input.
    """

    normalizes_input: ClassVar[bool] = True
    kind: Literal["pre_norm"] = "pre_norm"
    norm: AnyNorm


@part
class PostNorm(Wiring):
    """norm(x + F(x)) for each content in turn (Vaswani 2017).

    Attributes:
        norm: of the sum with the residual.
    """

    normalizes_output: ClassVar[bool] = True
    kind: Literal["post_norm"] = "post_norm"
    norm: AnyNorm


@part
class SandwichNorm(Wiring):
    """x + norm'(F(norm(x))) for each content in turn (Ding 2021; Gemma 2).

    Attributes:
        norm: of each content's input and of its output.
    """

    normalizes_input: ClassVar[bool] = True
    normalizes_output: ClassVar[bool] = True
    kind: Literal["sandwich"] = "sandwich"
    norm: AnyNorm


@part
class OutputNorm(Wiring):
    """x + norm(F(x)) for each content in turn (Liu 2021, Swin v2; OLMo 2).

    Attributes:
        norm: of each content's output.
    """

    normalizes_output: ClassVar[bool] = True
    kind: Literal["output_norm"] = "output_norm"
    norm: AnyNorm


@part
class ParallelResidual(Wiring):
    """x + mixer(norm(x)) + feedforward(norm'(x)) (GPT-J; Chowdhery 2022); a shared norm serves both.

    Attributes:
        norm: of the contents' inputs.
        shared_norm: whether one norm serves both.
    """

    normalizes_input: ClassVar[bool] = True
    kind: Literal["parallel"] = "parallel"
    norm: AnyNorm
    shared_norm: Flag = False


@part
class Plain(Wiring):
    """F(x) for each content in turn: no residual and no norm, for recurrent stacks.

    The result of cross-attention is added to its query's vector (Luong 2015, equation 5).
    """

    kind: Literal["plain"] = "plain"


class Block(Spec):
    """One layer. `cross_attention` attends to an encoder's output.

    What each content gives is dropped out, and multiplied by `residual_scale` (Granite), before it is added.

    Attributes:
        wiring: where norms and residuals stand.
        mixer: what mixes positions.
        cross_attention: what attends to an encoder's output (absent: nothing).
        feedforward: what works on each position alone.
        dropout: of what each content adds, while training.
        residual_scale: factor of what each content adds.
    """

    renamed: ClassVar[dict[str, str]] = {"cross": "cross_attention"}
    wiring: AnyWiring
    mixer: AnyMixer
    cross_attention: Attention | None = None
    feedforward: AnyFeedForward = NoFeedForward()
    dropout: Probability = 0.0
    residual_scale: Positive = 1.0

    @model_validator(mode="after")
    def _contents_fit_the_wiring(self) -> "Block":
        if isinstance(self.wiring, ParallelResidual):
            if isinstance(self.feedforward, NoFeedForward):
                invalid("wiring", "parallel wiring needs a feed-forward part", "give one, or use pre_norm")
            if self.cross_attention is not None:
                invalid("wiring", "parallel wiring has no place for cross-attention", "use pre_norm or post_norm")
        return self

    @model_validator(mode="after")
    def _cross_sees_all(self) -> "Block":
        if self.cross_attention is not None:
            if not isinstance(self.cross_attention.position, NoPosition):
                cause = "a position in the target has no distance to one in the source"
                invalid("cross_attention.position", cause, "leave it out")
            if self.cross_attention.query_scale is not None:
                cause = "a position in the target has no distance to one in the source"
                invalid("cross_attention.query_scale", cause, "leave it out")
            if not isinstance(self.cross_attention.pattern, Full):
                invalid("cross_attention.pattern", "cross-attention sees the whole source", "leave it out")
        return self
