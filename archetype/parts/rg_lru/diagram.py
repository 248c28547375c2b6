"""Drawing of a real-gated linear recurrent unit."""

from archetype.parts.rg_lru.spec import RGLRU
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(RGLRU)
def rg_lru(part: RGLRU, modules: frozenset[str]) -> Inside:
    """Draw the convolution, the gated recurrence after it, and the output gate (De 2024, figure 2)."""
    gates = ("input_gate", "decay_gate", "rate")
    cells = (
        Cell("inputs", 0, 0, (X,), 2, label="x", rows=("x",)),
        Cell("gate", 2, 0, (X,)),
        Cell("conv", 0, 1, ("inputs",), 2),
        Cell("gates", 0, 2, ("conv",), label="gates i, r", rows=gates),
        operation("h", 0, 3, ("gates", "conv@1"), 2, "h = a h + √(1 − a²) i u"),
        operation("gated", 0, 4, ("h", "gate"), 3, "h × activation(gate)", gives="o.in"),
        Cell("o", 1, 5, ("gated",)),
    )
    return Inside(cells, "o")
