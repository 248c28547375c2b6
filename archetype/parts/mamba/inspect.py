"""Mean step size for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.mamba.spec import Mamba
from archetype.spec.registry import provides

provides("inspect", Mamba)(Shown(series=lambda part: mean_series(part, "delta")))
