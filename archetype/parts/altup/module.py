"""Alternating updates: prediction and correction of the residual streams around a block."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.autocast import without_autocast
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.residual import ResidualStream
from archetype.parts.altup import spec
from archetype.weights.linear import Linear

SMALLEST = 1e-5  # mean square of a projection that is rescaled


@module_for(spec.AltUp)
class AltUpModule(ResidualStream):
    """P = X + A(m(x_a)) X, then X' = P + (1 + b(m(y))) (y - p_a), around the block that computes y from p_a."""

    def __init__(self, residual: spec.AltUp, place: Place) -> None:
        super().__init__(residual, place)
        n = residual.num_streams
        self.norm = build_norm(residual.norm, place.d_model)
        self.router = Linear(place.d_model, n, bias=False)
        self.prediction = Linear(n, n * n, bias=False)
        self.correction = Linear(n, n, bias=False)

    @staticmethod
    def entry(residual: spec.AltUp, place: Place) -> nn.Module:
        return AltUpEntry(residual, place.d_model)

    @staticmethod
    def exit(residual: spec.AltUp, place: Place) -> nn.Module:
        return AltUpExit(residual, place.d_model)

    def modalities(self, x: Vectors, context: ForwardContext) -> Float[Tensor, "B T n"]:
        """Return m(x) = tanh(W norm(x) / D)."""
        return torch.tanh(self.router(self.norm(x, context) / x.shape[-1]))

    def predict(self, stream: Float[Tensor, "B T n D"], context: ForwardContext) -> Float[Tensor, "B T n D"]:
        with without_autocast(stream):
            m = self.modalities(stream[:, :, self.spec.active], context)
            mixing = self.prediction(m).unflatten(-1, (self.spec.num_streams, -1))  # (B, T, n, n)
            return stream + mixing @ stream

    def read(self, stream: Float[Tensor, "B T n D"], context: ForwardContext) -> Vectors:
        return stream[:, :, self.spec.active].contiguous()  # a copy: backward then keeps one stream, not all

    def write(self, stream: Float[Tensor, "B T n D"], y: Vectors, context: ForwardContext) -> Float[Tensor, "B T n D"]:
        with without_autocast(stream):
            y = y.to(stream.dtype)
            innovation = y - self.read(stream, context)
            weights = 1 + self.correction(self.modalities(y, context))  # (B, T, n)
            return stream + weights[..., None] * innovation[:, :, None]


class Projections(nn.Module):
    """A projection for each stream but the first."""

    def __init__(self, residual: spec.AltUp, d_model: int) -> None:
        super().__init__()
        self.projections = nn.ModuleList(Linear(d_model, d_model, bias=False) for _ in range(residual.num_streams - 1))

    def stacked(self, first: Vectors, others: tuple[Vectors, ...]) -> Float[Tensor, "B T n D"]:
        """Return the first stream and projections of the others, rescaled to the first's root mean square."""
        size = _mean_square(first).sqrt()
        projected = (project(x) for project, x in zip(self.projections, others, strict=True))
        rescaled = (x * (size / _mean_square(x).clamp(min=SMALLEST).sqrt()) for x in projected)
        return torch.stack((first, *rescaled), dim=2)


class AltUpEntry(Projections):
    """Streams before the first block: the embedding, and rescaled projections of it."""

    def forward(self, x: Vectors) -> Float[Tensor, "B T n D"]:
        with without_autocast(x):
            return self.stacked(x, (x,) * len(self.projections))


class AltUpExit(Projections):
    """Output vectors of a stack: the mean of the first stream and of rescaled projections of the others."""

    def forward(self, stream: Float[Tensor, "B T n D"]) -> Vectors:
        with without_autocast(stream):
            first, *others = stream.unbind(2)
            return self.stacked(first, tuple(others)).mean(2)


def _mean_square(x: Vectors) -> Float[Tensor, "B T 1"]:
    return x.square().mean(-1, keepdim=True)
