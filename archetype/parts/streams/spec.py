"""Specification of residual streams with learned weights."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.roles.residual import Residual
from archetype.spec.base import Flag, NotNegative, Positive, Size
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class Streams(Residual):
    """n residual streams X: X' = A X + b F(a X), with weights a, b and A from X (hyper-connections: Zhu 2024).

    From a projection w of the normalized streams, the read weights are a = sigmoid(w_a) + `eps`, and the write weights
    are b = `write_scale` sigmoid(w_b) + `write_eps`. A is doubly stochastic, by `sinkhorn_steps` normalizations of
    columns and rows (manifold-constrained hyper-connections: Xie 2025; DeepSeek-V4), or the identity with
    `sinkhorn_steps: 0` (Hy4).

    Attributes:
        num_streams: number of residual streams, n.
        sinkhorn_steps: normalizations of the mixing matrix (0: the streams are not mixed).
        exit: reduction of the final streams to one vector: `weighted` like the input of a sublayer, or their mean.
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

    @property
    def streams(self) -> int:
        return self.num_streams


@part
class GatedStreams(Residual):
    """n residual streams x_i: a sublayer reads mean_i g_i * z_i and adds b_i F to each stream (Qwen4-Exp).

    z_i = norm(x_i) * w_i with separate weights w_i, and z is the concatenation of the z_i. The gates g = sigmoid(W_up
    silu(W_down z / n)) have one value per feature and stream, and the write weights b = 2 sigmoid(W_b z / n) one value
    per stream. The input of a sublayer is already normalized. The stack's output is read with separate gates.

    Attributes:
        num_streams: number of residual streams, n.
        rank: rank of the gates.
        norm_eps: epsilon of the norm of each stream, added to the mean square.
        unit_offset: whether the factor of the norm is 1 + weight.
    """

    title: ClassVar[str] = "Gated residual streams"
    letters: ClassVar = {"n": "residual streams"}
    kind: Literal["gated_streams"] = "gated_streams"
    num_streams: Size = 4
    rank: Width = 16
    norm_eps: Positive = 1e-6
    unit_offset: Flag = False

    @property
    def streams(self) -> int:
        return self.num_streams
