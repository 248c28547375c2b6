"""Mean decay and rate of removal for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.rwkv7.spec import RWKV7
from archetype.spec.registry import provides

provides("inspect", RWKV7)(Shown(series=lambda part: mean_series(part, "log_decay", "rate")))
