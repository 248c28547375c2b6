"""Residual streams that hold more than one vector per position."""

from typing import Any

from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.roles.residual import Residual


class ResidualStream(nn.Module):
    """Base class of residual wirings: one module for each sublayer of each block, or for each block.

    The stream is any tensor whose first dimensions are batch and positions, (B, T, ..., D).
    """

    def __init__(self, residual: Any, place: Place) -> None:
        super().__init__()
        self.spec, self.place = residual, place

    @staticmethod
    def enter(residual: Any, x: Vectors) -> Tensor:
        """Return the stream before the first block from the embedded tokens (default: a copy for each stream)."""
        return x[:, :, None].repeat(1, 1, residual.streams, 1)

    @staticmethod
    def leave(residual: Any, stream: Tensor) -> Vectors:
        """Return the output vectors of the stack from the stream after the last block (default: the mean)."""
        return stream.mean(2)

    @staticmethod
    def entry(residual: Any, place: Place) -> nn.Module | None:
        """Return a module that computes the first stream with weights, `(x) -> stream` (None: `enter` does)."""
        return None

    @staticmethod
    def exit(residual: Any, place: Place) -> nn.Module | None:
        """Return a module that computes the output vectors with weights, `(stream) -> y` (None: `leave` does)."""
        return None

    def predict(self, stream: Tensor, context: ForwardContext) -> Tensor:
        """Return the stream that a block reads from and writes to, where streams are read once per block."""
        return stream

    def read(self, stream: Tensor, context: ForwardContext) -> Vectors:
        """Return the input vectors of the sublayer (before its norm), or of the block."""
        raise NotImplementedError

    def write(self, stream: Tensor, y: Vectors, context: ForwardContext) -> Tensor:
        """Return the stream after adding the output `y` of the sublayer or block."""
        raise NotImplementedError


class OneStream(ResidualStream):
    """Stream of one vector per position, as of a plain sum; base class of the wirings that have no other."""

    @staticmethod
    def enter(residual: Any, x: Vectors) -> Tensor:
        return x

    @staticmethod
    def leave(residual: Any, stream: Tensor) -> Vectors:
        return stream

    def read(self, stream: Tensor, context: ForwardContext) -> Vectors:
        return stream


def stream_class(residual: Residual) -> type[ResidualStream]:
    """Return the class of a residual wiring; asked before a pass, since compilers cannot trace an import."""
    module = OneStream if residual.is_sum else module_class(residual)
    assert issubclass(module, ResidualStream), f"{module.__name__} is not a ResidualStream"
    return module
