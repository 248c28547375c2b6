"""Hyper-connections (Zhu 2024, arXiv 2409.19606), a residual wiring from outside: several streams that are mixed."""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import (
    FLOAT32,
    Flag,
    Formula,
    ForwardContext,
    Place,
    ResidualCost,
    ResidualStream,
    Size,
    TrainingWork,
    Vectors,
    symbol,
)

Streams = Float[Tensor, "B T n D"]


class HyperConnections(spec.Residual):
    """A content reads a mixture of n streams; they are mixed, and each takes a share of what it gives (Zhu 2024).

    Attributes:
        num_streams: vectors of each position, n.
        dynamic: whether the shares also follow from the streams themselves (section 2.2).
    """

    kind: Literal["hyper_connections"] = "hyper_connections"
    letters: ClassVar = {"n": "residual streams"}
    num_streams: Size = 4
    dynamic: Flag = True


class HyperConnectionsModule(ResidualStream):
    """Shares of one content: alpha (n, 1 + n) of what it reads and of the mixed streams, beta (n) of what it gives."""

    def __init__(self, residual: HyperConnections, place: Place) -> None:
        super().__init__(residual, place)
        n, d = residual.num_streams, place.d_model
        self.static_alpha, self.static_beta = nn.Parameter(torch.empty(n, 1 + n)), nn.Parameter(torch.empty(n))
        if residual.dynamic:
            self.norm = nn.LayerNorm(d)
            self.dynamic_alpha, self.dynamic_beta = nn.Parameter(torch.empty(d, 1 + n)), nn.Parameter(torch.empty(d))
            self.alpha_scale, self.beta_scale = (nn.Parameter(torch.empty(1)) for _ in range(2))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Begin as one residual stream: each content reads one of the streams, in turn, and writes to all of them."""
        if name == "static_alpha":
            tensor.zero_()
            tensor[self.place.content % len(tensor), 0] = 1.0
            tensor[:, 1:].fill_diagonal_(1.0)
        else:
            tensor.fill_({"static_beta": 1.0, "alpha_scale": 0.01, "beta_scale": 0.01}.get(name, 0.0))
        return True

    @staticmethod
    def enter(residual: HyperConnections, x: Vectors) -> Streams:
        return x[:, :, None].expand(-1, -1, residual.num_streams, -1)

    @staticmethod
    def leave(residual: HyperConnections, stream: Streams) -> Vectors:
        return stream.sum(2)

    def read(self, stream: Streams, context: ForwardContext) -> Vectors:
        alpha, _ = self.shares(stream)
        x: Tensor = (alpha[..., :1].to(stream.dtype).mT @ stream).squeeze(2)
        return x

    def write(self, stream: Streams, y: Vectors, context: ForwardContext) -> Streams:
        alpha, beta = self.shares(stream)
        mixed: Tensor = alpha[..., 1:].to(stream.dtype).mT @ stream
        return mixed + beta.to(stream.dtype)[..., None] * y[:, :, None]

    def shares(self, stream: Streams) -> tuple[Tensor, Tensor]:
        """alpha, (..., n, 1 + n), and beta, (..., n): the same everywhere, or of each position (equations 10 to 13)."""
        if not self.spec.dynamic:
            return self.static_alpha, self.static_beta
        x = self.norm(stream)
        alpha = self.static_alpha + self.alpha_scale * torch.tanh(x @ self.dynamic_alpha)
        return alpha, self.static_beta + self.beta_scale * torch.tanh(x @ self.dynamic_beta)


class HyperConnectionsCost(ResidualCost):
    """Products with the shares, and those that make them; reading and writing each make their own."""

    def __init__(self, part: Any, d: Formula) -> None:
        super().__init__(part, d)
        self.n, self.streams = symbol("n", part.num_streams, part), part.num_streams

    def parameters(self) -> Formula:
        static = self.n * (self.n + 2)
        return static + (self.d * (self.n + 4) + 2 if self.part.dynamic else 0)

    def flops(self, tokens: Formula) -> Formula:
        mixing = 2 * tokens * self.d * self.n * (self.n + 1)
        return mixing + (4 * tokens * self.d * self.n * (self.n + 2) if self.part.dynamic else 0)

    def saved_activations(self, work: TrainingWork) -> int:
        """The streams, what is written to them, and where shares follow from them their norm, twice."""
        n, d = self.part.num_streams, self.d.value
        own = n * (2 * d + 4 + 4 * (n + 2)) if self.part.dynamic else 0
        return work.tokens * (n * d + d + own) * FLOAT32


archetype.register(HyperConnections, module=HyperConnectionsModule, cost=HyperConnectionsCost)
