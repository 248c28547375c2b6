"""Mean rate of correction and decay of the memory for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.spec.registry import provides

provides("inspect", GatedDeltaNet)(Shown(series=lambda part: mean_series(part, "rate", "log_decay")))
