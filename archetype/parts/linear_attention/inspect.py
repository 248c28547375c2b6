"""Mean decay of the memory for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.linear_attention.spec import LinearAttention
from archetype.spec.registry import provides

provides("inspect", LinearAttention)(Shown(series=lambda part: mean_series(part, "log_decay")))
