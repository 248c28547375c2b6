"""Projections of a module that may be of low rank: `a`, or `a_down` and `a_up`."""

from jaxtyping import Float
from torch import Tensor, nn

from archetype.weights.linear import Linear


def add_projection(
    module: nn.Module, name: str, inputs: int, outputs: int, rank: int | None = None, bias: bool = False
) -> None:
    """Add a projection to a module; with a rank, as two matrices, of which the second may have a bias."""
    if rank is None:
        module.add_module(name, Linear(inputs, outputs, bias=bias))
    else:
        module.add_module(f"{name}_down", Linear(inputs, rank, bias=False))
        module.add_module(f"{name}_up", Linear(rank, outputs, bias=bias))


def projected(module: nn.Module, name: str, x: Float[Tensor, "*dims D"]) -> Float[Tensor, "*dims F"]:
    """Apply a projection that `add_projection` added."""
    names = (name,) if name in module._modules else (f"{name}_down", f"{name}_up")
    for each in names:
        x = getattr(module, each)(x)
    return x
