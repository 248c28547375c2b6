"""Specification of alternating updates."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.parts.norm.spec import RMSNorm
from archetype.roles.norm import VectorNorm
from archetype.roles.residual import Residual
from archetype.spec.base import Index, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part


@part
class AltUp(Residual):
    """n residual streams X, of which a block F computes only the active one, x_a (AltUp, Baykal 2023; Gemma 3n).

    With m(x) = tanh(W norm(x) / D), the block predicts all streams and corrects them by its innovation:
    P = X + A(m(x_a)) X, then X' = P + (1 + b(m(y))) (y - p_a) for y = F(p_a), with linear A and b without a bias.

    The first stream begins as the embedding x, each other one as a projection of x, rescaled to the root mean square of
    x. The stack's output is the mean of the first stream and of a projection of each other one, rescaled likewise.

    Attributes:
        num_streams: number of residual streams, n.
        active: index of the active stream, a.
        norm: norm in the router m.
    """

    title: ClassVar[str] = "Alternating updates"
    per_block: ClassVar[bool] = True
    letters: ClassVar = {"n": "residual streams"}
    kind: Literal["altup"] = "altup"
    num_streams: Size = 4
    active: Index = 0
    norm: VectorNorm = RMSNorm()

    @model_validator(mode="after")
    def _active_stream_exists(self) -> Self:
        if self.active >= self.num_streams:
            cause = f"there are only {self.num_streams} streams"
            invalid("active", cause, f"use an index from 0 to {self.num_streams - 1}")
        return self

    @property
    def streams(self) -> int:
        return self.num_streams
