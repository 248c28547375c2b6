"""Mean step, decay and share of the token's own write, for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.mamba3.spec import Mamba3
from archetype.spec.registry import provides

provides("inspect", Mamba3)(Shown(series=lambda part: mean_series(part, "delta", "log_decay", "share")))
