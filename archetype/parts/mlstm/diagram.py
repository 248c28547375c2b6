"""Drawing of an mLSTM."""

from archetype.parts.mlstm.spec import MLSTM
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(MLSTM)
def mlstm(part: MLSTM, modules: frozenset[str]) -> Inside:
    """Draw queries, keys, values and gates of the matrix memory, and the gated norm (Beck 2025, figure 1)."""
    gates, rule = ("input_gate", "forget_gate"), ("scores", "mixture", "memory")
    label = "C = f C + i k vᵀ, n = f n + i k"
    cells = (
        *(Cell(name, column, 0, (X,)) for column, name in enumerate("qkv")),
        Cell("gates", 3, 0, (X,), label="gates i, f", rows=gates),
        Cell("gate", 4, 0, (X,)),
        Cell("rule", 0, 1, ("q", "k", "v", "gates"), 4, label, rule, shape="(B, T, HQ)"),
        operation("h", 0, 2, ("rule",), 4, "h = Cᵀq / max(|nᵀq|, 1)"),
        Cell("norm", 0, 3, ("h", "gate"), 5, "norm(h) × σ(gate)", slim=True, kind="norm", gives="o.in"),
        Cell("o", 2, 4, ("norm",)),
    )
    return Inside(cells, "o")
