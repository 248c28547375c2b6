"""Residual streams: per-position weights for reading, writing and mixing."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.autocast import cast_for_products, without_autocast
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.residual import ResidualStream
from archetype.parts.streams import spec
from archetype.weights.linear import Linear

CERTAIN = 8.0  # logit of a weight that begins at its limit
OWN = 4.0  # initial logit with which a stream keeps its content, relative to taking that of another
DYNAMIC = 0.01  # initial share of the projection in the logits (Zhu 2024, table 1)


def doubly_stochastic(logits: Float[Tensor, "... n n"], steps: int, eps: float) -> Float[Tensor, "... n n"]:
    """Normalize columns and rows in turn, columns last (Sinkhorn 1967)."""
    matrix = logits.softmax(-1) + eps
    for step in range(steps):
        if step:
            matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


class StreamWeights(nn.Module):
    """Logits of stream weights: a projection of all streams of a position, normalized together.

    Args:
        groups: number of logits in each group with a common factor.
    """

    def __init__(self, residual: spec.Streams, d_model: int, groups: tuple[int, ...]) -> None:
        super().__init__()
        self.spec, self.groups = residual, groups
        self.weight = nn.Parameter(torch.empty(sum(groups), residual.num_streams * d_model))
        self.bias = nn.Parameter(torch.empty(sum(groups)))
        self.scale = nn.Parameter(torch.empty(len(groups)))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Begin nearly as one residual stream: reading the mean, writing to all streams alike."""
        if name == "scale":
            tensor.fill_(DYNAMIC)
        if name == "bias":
            n = self.spec.num_streams
            read, write, *mixing = tensor.split(self.groups) if len(self.groups) > 1 else (tensor, tensor[:0])
            read.fill_(-math.log(n - 1) if n > 1 else CERTAIN)
            write.fill_(-math.log(self.spec.write_scale - 1) if self.spec.write_scale > 1 else CERTAIN)
            for matrix in mixing:
                matrix.copy_((OWN * torch.eye(n, device=tensor.device)).flatten())
        return name != "weight"

    def logits(self, stream: Float[Tensor, "B T n D"], first: int, last: int) -> list[Tensor]:
        """Return the logits of the groups from `first` to before `last`."""
        before, here = sum(self.groups[:first]), self.groups[first:last]
        rows = slice(before, before + sum(here))
        x = stream.flatten(2)  # (B, T, n D)
        # the norm's factor is applied after the product, which reads fewer numbers
        size = (x.square().mean(-1, keepdim=True) + self.spec.norm_eps).rsqrt()  # (B, T, 1)
        projected = nn.functional.linear(x, self.weight[rows].to(x.dtype)) * size
        scales, biases = self.scale[first:last].to(x.dtype), self.bias[rows].to(x.dtype).split(here)
        parts = zip(projected.split(here, -1), scales, biases, strict=True)
        return [part * scale + bias for part, scale, bias in parts]

    def read(self, stream: Float[Tensor, "B T n D"]) -> Vectors:
        with _exactly(stream) as exact:
            (logits,) = self.logits(exact, 0, 1)
            weights = logits.sigmoid() + self.spec.eps  # (B, T, n)
            return (weights[:, :, None] @ exact).squeeze(2).to(stream.dtype)


@contextmanager
def _exactly(stream: Tensor) -> Iterator[Tensor]:
    # small weights of a sum over all layers need more than bfloat16
    with without_autocast(stream):
        yield stream.to(torch.promote_types(stream.dtype, torch.float32))


@module_for(spec.Streams)
class StreamsModule(ResidualStream):
    """X' = A^T X + b F(a X) for one sublayer, with weights of each position (Xie 2025, equation 3)."""

    def __init__(self, residual: spec.Streams, place: Place) -> None:
        super().__init__(residual, place)
        n = residual.num_streams
        self.weights = StreamWeights(residual, place.d_model, (n, n, n * n) if residual.sinkhorn_steps else (n, n))

    @staticmethod
    def exit(residual: spec.Streams, place: Place) -> nn.Module | None:
        return StreamsExit(residual, place.d_model) if residual.exit == "weighted" else None

    def read(self, stream: Float[Tensor, "B T n D"], context: ForwardContext) -> Vectors:
        return self.weights.read(stream)

    def write(self, stream: Float[Tensor, "B T n D"], y: Vectors, context: ForwardContext) -> Float[Tensor, "B T n D"]:
        with _exactly(stream) as exact:
            write, *mixing = self.weights.logits(exact, 1, len(self.weights.groups))
            weights = self.spec.write_scale * write.sigmoid() + self.spec.write_eps  # (B, T, n)
            written = weights[..., None] * y.to(exact.dtype)[:, :, None]
            for logits in mixing:
                square = logits.unflatten(-1, (self.spec.num_streams, -1))  # (B, T, n, n)
                exact = doubly_stochastic(square, self.spec.sinkhorn_steps, self.spec.eps).mT @ exact
            return (exact + written).to(stream.dtype)


class StreamsExit(StreamWeights):
    """Output vectors of a stack: the last layer's streams, weighted as a sublayer reads them."""

    def __init__(self, residual: spec.Streams, d_model: int) -> None:
        super().__init__(residual, d_model, (residual.num_streams,))

    def forward(self, stream: Float[Tensor, "B T n D"]) -> Vectors:
        return self.read(stream)


class StreamGates(nn.Module):
    """Gates per feature and stream that reduce the streams to one vector."""

    def __init__(self, residual: spec.GatedStreams, d_model: int) -> None:
        super().__init__()
        self.spec, features = residual, residual.num_streams * d_model
        self.norm_weight = nn.Parameter(torch.empty(features))
        self.initial_values = {"norm_weight": 0.0 if residual.unit_offset else 1.0}
        self.gate_down = Linear(features, residual.rank, bias=False)
        self.gate_up = Linear(residual.rank, features, bias=False)

    def normalized(self, stream: Float[Tensor, "B T n D"]) -> Float[Tensor, "B T nD"]:
        """Return the normalized streams of each position, one behind the other."""
        with without_autocast(stream):
            exact = torch.promote_types(stream.dtype, torch.float32)
            weight = self.norm_weight.to(exact) + float(self.spec.unit_offset)
            z = nn.functional.rms_norm(stream.to(exact), stream.shape[-1:], None, self.spec.norm_eps)
            return cast_for_products((z.flatten(2) * weight).to(stream.dtype))

    def read_normalized(self, z: Float[Tensor, "B T nD"]) -> Vectors:
        n = self.spec.num_streams
        gates = torch.sigmoid(self.gate_up(nn.functional.silu(self.gate_down(z) / n)))
        return (gates * z).unflatten(-1, (n, -1)).mean(2)

    def forward(self, stream: Float[Tensor, "B T n D"]) -> Vectors:
        return self.read_normalized(self.normalized(stream))


@module_for(spec.GatedStreams)
class GatedStreamsModule(ResidualStream):
    """x_i + b_i F(mean_i g_i * z_i) for one sublayer, with weights of each position."""

    def __init__(self, residual: spec.GatedStreams, place: Place) -> None:
        super().__init__(residual, place)
        self.gates = StreamGates(residual, place.d_model)
        self.write_weights = Linear(residual.num_streams * place.d_model, residual.num_streams, bias=False)

    @staticmethod
    def exit(residual: spec.GatedStreams, place: Place) -> nn.Module | None:
        return StreamGates(residual, place.d_model)

    def read(self, stream: Float[Tensor, "B T n D"], context: ForwardContext) -> Vectors:
        return self.gates(stream)

    def write(self, stream: Float[Tensor, "B T n D"], y: Vectors, context: ForwardContext) -> Float[Tensor, "B T n D"]:
        weights = 2 * torch.sigmoid(self.write_weights(self.gates.normalized(stream)) / self.spec.num_streams)
        return stream + (weights[..., None] * y[:, :, None]).to(stream.dtype)
