"""Mean logarithms of the gates for each token of a recorded pass."""

from archetype.nn.inspect import Shown, mean_series
from archetype.parts.mlstm.spec import MLSTM
from archetype.spec.registry import provides

provides("inspect", MLSTM)(Shown(series=lambda part: mean_series(part, "log_forget", "log_input")))
