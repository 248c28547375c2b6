"""Mean decay for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.rg_lru.spec import RGLRU
from archetype.spec.registry import provides

provides("inspect", RGLRU)(Shown(series=lambda part: mean_series(part, "log_decay")))
