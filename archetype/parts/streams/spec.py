"""Specification of residual streams with learned weights."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.roles.residual import Residual
from archetype.spec.base import NotNegative, Positive, Size
from archetype.spec.kinds import part

__all__ = ["Streams"]


@part
class Streams(Residual):
    """n residual streams X: X' = A X + b F(a X), with weights a, b and A from X (hyper-connections: Zhu 2024).

    With a projection w of the normalized streams, the read weights are a = sigmoid(w_a) + `eps`, the write weights
    b = `write_scale` sigmoid(w_b) + `write_eps`. A is a doubly stochastic matrix, the result of `sinkhorn_steps`
    normalizations of columns and rows (manifold-constrained hyper-connections: Xie 2025; DeepSeek-V4), or with
    `sinkhorn_steps: 0` the identity (Hy4).

    Attributes:
        num_streams: residual vectors of each position, n.
        sinkhorn_steps: normalizations of the mixing matrix (0: the streams are not mixed).
        exit: how the last layer's streams become one vector: weighted like the input of a sublayer, or their mean.
        write_scale: largest write weight.
        eps: added to the read weights and in the normalizations.
        write_eps: added to the write weights.
        norm_eps: epsilon of the norm of the streams.
    """

    title: ClassVar[str] = "Residual streams"
    letters: ClassVar = {"n": "residual streams"}
    kind: Literal["streams"] = "streams"
    num_streams: Size = 4
    sinkhorn_steps: Annotated[int, Field(strict=True, ge=0, le=100)] = 20
    exit: Literal["weighted", "mean"] = "weighted"
    write_scale: Positive = 2.0
    eps: NotNegative = 1e-6
    write_eps: NotNegative = 0.0
    norm_eps: Positive = 1e-6
