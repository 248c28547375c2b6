"""Cost of scaled residual sums."""

from archetype.cost.registry import ResidualCost, cost_of
from archetype.parts.scaled_sum import spec


@cost_of(spec.ScaledSum)
class ScaledSumCost(ResidualCost):
    """Zero cost: sums and constant factors are not counted, and save nothing for the backward pass."""
