"""Mean of the weights' logarithms for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.rwkv4.spec import RWKV4
from archetype.spec.registry import provides

provides("inspect", RWKV4)(Shown(series=lambda part: mean_series(part, "k", "r")))
