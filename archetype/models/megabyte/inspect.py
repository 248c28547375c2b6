"""Patch contexts of a recorded pass."""

from archetype.models.megabyte.spec import MegaByte
from archetype.nn.inspect import PartTrace, Series, Shown
from archetype.spec.registry import provides


def series(model: PartTrace) -> list[Series]:
    """Return the norm of each patch's context."""
    return [Series("patches", "norm of context", model.activations["contexts"][0].float().norm(dim=-1))]


provides("inspect", MegaByte)(Shown(series=series))
