"""A block: its contents (mixer, feed-forward), and apart from them how norms and residuals wire them."""

from typing import Annotated, Literal

from pydantic import Field

from archetype.spec.attention import Mixer
from archetype.spec.base import Flag, Probability, Spec
from archetype.spec.feedforward import FeedForward
from archetype.spec.norm import Norm


class PreNorm(Spec):
    """x + F(norm(x)) for each content in turn (Xiong 2020)."""

    kind: Literal["pre_norm"] = "pre_norm"
    norm: Norm


class PostNorm(Spec):
    """norm(x + F(x)) for each content in turn (Vaswani 2017)."""

    kind: Literal["post_norm"] = "post_norm"
    norm: Norm


class ParallelResidual(Spec):
    """x + mixer(norm(x)) + feedforward(norm'(x)) (GPT-J; Chowdhery 2022); a shared norm serves both."""

    kind: Literal["parallel"] = "parallel"
    norm: Norm
    shared_norm: Flag = False


Wiring = Annotated[PreNorm | PostNorm | ParallelResidual, Field(discriminator="kind")]


class Block(Spec):
    """One layer. `dropout` falls on what each content adds to the residual stream."""

    wiring: Wiring
    mixer: Mixer
    feedforward: FeedForward
    dropout: Probability = 0.0
