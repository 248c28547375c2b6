"""The residual stream of a stack, where it is more than one vector for each position."""

from typing import Any

from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.roles.residual import Residual


class ResidualStream(nn.Module):
    """Base of residual wirings: one module for each content of each block.

    The stream is any tensor that begins with batch and positions, (B, T, ..., D).

    Args:
        residual: the specification.
        place: of the content; `place.content` counts the contents of the stack.
    """

    def __init__(self, residual: Any, place: Place) -> None:
        super().__init__()
        self.spec, self.place = residual, place

    @staticmethod
    def enter(residual: Any, x: Vectors) -> Tensor:
        """The stream before the first block, of the embedded tokens."""
        raise NotImplementedError

    @staticmethod
    def leave(residual: Any, stream: Tensor) -> Vectors:
        """The vectors after the last block, of the stream."""
        raise NotImplementedError

    def read(self, stream: Tensor, context: ForwardContext) -> Vectors:
        """The vectors that the content's norm, and then the content, reads."""
        raise NotImplementedError

    def write(self, stream: Tensor, y: Vectors, context: ForwardContext) -> Tensor:
        """The stream after the content has given `y`."""
        raise NotImplementedError


def enter(residual: Residual, x: Vectors) -> Tensor:
    """The stream before the first block: the embedded tokens, or what a residual wiring makes of them."""
    return x if residual.is_sum else _stream_class(residual).enter(residual, x)


def leave(residual: Residual, stream: Tensor) -> Vectors:
    """The vectors after the last block."""
    return stream if residual.is_sum else _stream_class(residual).leave(residual, stream)


def _stream_class(residual: Residual) -> type[ResidualStream]:
    module = module_class(residual)
    assert issubclass(module, ResidualStream), f"{module.__name__} is no ResidualStream"
    return module
