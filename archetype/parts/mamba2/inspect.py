"""Mean step size for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.mamba2.spec import Mamba2
from archetype.spec.registry import provides

provides("inspect", Mamba2)(Shown(series=lambda part: mean_series(part, "delta")))
