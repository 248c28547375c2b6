"""Drawing of latent attention."""

from archetype.parts.latent_attention.spec import LatentAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation, selection_inside


@inside_of(LatentAttention)
def latent_attention(part: LatentAttention, modules: frozenset[str]) -> Inside:
    """Draw the low-rank projections of queries, and of keys and values (DeepSeek-AI 2024, figure 3)."""
    cells = [
        Cell("kv_down", 1, 0, (X,), 2),
        Cell("kv_norm", 2, 1, ("kv_down",), kind="norm", slim=True, label="norm"),
        Cell("kv_up", 2, 2, ("kv_norm",)),
    ]
    rotates, key = not part.position.is_absent, "kv_down"
    if not part.key_norm.is_absent:
        key = "k_norm"
        cells.append(Cell(key, 1, 1, ("kv_down",), kind="norm", slim=True, label="k norm"))
    if rotates:
        cells.append(Cell("rope_k", 1, 3, (key,), label="rotate k", kind="position", slim=True, gives="k_rope"))
    if part.query.rank is not None:
        label = "norm & input" if part.query.joins_unnormed else "norm"
        cells += [
            Cell("q_down", 0, 0, (X,)),
            Cell("q_norm", 0, 1, ("q_down",), kind="norm", slim=True, label=label),
            Cell("q_up", 0, 2, ("q_norm",)),
        ]
    else:
        cells.append(Cell("q", 0, 0, (X,)))
    query = cells[-1].name
    index, row = Inside(()), 4
    if part.index is not None:
        queries, above = ("q_norm", 2) if part.query.rank is not None else (X, 0)
        index = selection_inside(part.index, modules, queries, 3.5, above)
        row = max(row, 1 + max(cell.row for cell in index.cells))
    chosen = (index.output,) if index.output else ()
    inputs = ("rope_q", "rope_k", "kv_up", *chosen) if rotates else (query, key, "kv_up", *chosen)
    if rotates:
        cells.append(Cell("rope_q", 0, 3, (query,), label="rotate q", kind="position", slim=True, gives="q_rope"))
    cells += [
        Cell(
            "scores",
            0,
            row,
            inputs,
            3,
            "softmax(q kᵀ) v",
            ("scores", "mixture", "sinks"),
            shape="(B, H, T, S)",
            gives="weights",
        ),
    ]
    last = "scores"
    if part.gate is not None:
        column = max((cell.column + cell.span for cell in index.cells), default=3)  # beside the index
        sources, above = ((X,), 0) if part.gate_from == "input" else (("q_norm",), 2)
        cells.append(Cell("gate", column, above, sources, rows=("gate", "gate_bias")))
        label = f"× {part.gate.activation}(gate)"
        cells.append(operation("gated", 0, row + 1, (last, "gate"), column + 1, label, gives="o.in"))
        last, row = "gated", row + 1
    cells.append(Cell("o", 1, row + 1, (last,)))
    return Inside((*cells, *index.cells), "o", index.groups)
