"""Drawing of Mamba-3."""

from archetype.parts.mamba3.spec import Mamba3
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(Mamba3)
def mamba3(part: Mamba3, modules: frozenset[str]) -> Inside:
    """Draw norms and turns of b and c, the trapezoidal rule, and the gate (Lahoti 2026, figure 2)."""
    norms = ("b_norm", "c_norm", "b_bias", "c_bias")
    rule = ("scores", "mixture", "memory", "ranks", "dt_bias", "D", "mimo_x")
    gate = "norm(y) × SiLU(z)" if part.norm else "y × SiLU(z)"
    cells = (
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("turns", 1, 1, ("in_proj@1",), label="norm, bias, turn b and c", rows=norms),
        Cell("ssm", 0, 2, ("in_proj", "turns"), 2, "trapezoidal SSM", rule, shape="(B, T, HP)"),
        Cell("gated", 0, 3, ("ssm", "in_proj@2"), 3, gate, rows=("norm", "mimo_z", "mimo_o"), gives="out_proj.in"),
        Cell("out_proj", 1, 4, ("gated",)),
    )
    return Inside(cells, "out_proj")
