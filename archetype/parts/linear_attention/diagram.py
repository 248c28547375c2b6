"""Drawing of linear attention."""

from archetype.parts.linear_attention.spec import LinearAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(LinearAttention)
def linear_attention(part: LinearAttention, modules: frozenset[str]) -> Inside:
    """Draw queries, keys and values, the decayed memory that they write and read, and a norm with a gate."""
    names = [name for name in "qkv" if name in modules]
    cells = [Cell(name, column, 0, (X,)) for column, name in enumerate(names)]
    width, reading, row = len(names), tuple(names), 1
    decay = next((name for name in ("a", "a_down") if name in modules), None)
    if decay is not None:
        cells.append(Cell("decay", width, 0, (X,), label="decay a", rows=("a", "a_down", "a_up")))
        width += 1
    if part.gate != "none":
        cells.append(Cell("gate", width, 0, (X,), rows=("gate", "gate_down", "gate_up")))
    for name, label in (("conv", "conv"), ("q_norm", "norms of q and k")):
        if name in modules:
            rows = (name,) if name == "conv" else ("q_norm", "k_norm")
            cells.append(Cell(name, 0, row, reading, len(names), label, rows=rows, lanes=len(names)))
            reading, row = (name,), row + 1
    rule = "S = a S + k vᵀ" if part.decay.kind != "none" else "S = S + k vᵀ"
    inputs = reading if decay is None else (*reading, "decay")
    parts = ("scores", "mixture", "memory")
    cells.append(
        Cell("rule", 0, row, inputs, width, rule, parts, shape="(B, T, HQ)" if part.v_head_dim else "(B, T, HP)")
    )
    gates = ("rule", "gate") if part.gate != "none" else ("rule",)
    gate = {"none": "", "silu": " × SiLU(gate)", "sigmoid": " × σ(gate)"}[part.gate]
    cells.append(Cell("norm", 0, row + 1, gates, width, f"norm(y){gate}", slim=True, kind="norm", gives="o.in"))
    cells.append(Cell("o", 1, row + 2, ("norm",)))
    return Inside(tuple(cells), "o")
