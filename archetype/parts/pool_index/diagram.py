"""Drawing of the pool index."""

from archetype.parts.pool_index.spec import PoolIndex
from archetype.roles.drawing import QUERIES, Cell, Inside, X, inside_of, operation


@inside_of(PoolIndex)
def pool_index(part: PoolIndex, modules: frozenset[str]) -> Inside:
    """Draw a small attention to pooled keys, whose scores select pools."""
    cells = [Cell("q", 0, 0, (QUERIES,)), Cell("k", 1, 0, (X,))]
    norms = [Cell(f"{name}_norm", column, 0, (), kind="norm", slim=True, label=f"{name} norm")
             for column, name in enumerate("qk") if not part.norm.is_absent]  # fmt: skip
    key, row = "k", 1
    if norms and part.norm_of == "keys":
        cells.append(norms.pop()._replace(row=row, inputs=(key,)))
        key, row, norms = "k_norm", row + 1, []
    pooled: tuple[str, ...] = (key,)
    if part.pooling == "gated":
        cells.append(Cell("pool_gate", 2, 0, (X,), label="gate", rows=("pool_gate", "pool_bias")))
        pooled = (key, "pool_gate")
    label = f"{'mean' if part.pooling == 'mean' else 'weighted mean'} of {part.pool} keys"
    cells.append(operation("pool", 1, row, pooled, len(pooled), label))
    inputs: tuple[str, ...] = ("q", "pool")
    row += 1
    if norms:
        cells += [norm._replace(row=row, inputs=(source,)) for norm, source in zip(norms, inputs, strict=True)]
        row, inputs = row + 1, ("q_norm", "k_norm")
    if part.position is not None:
        cells.append(Cell("rope", 0, row, inputs, 2, "rotate (RoPE)", kind="position", slim=True, lanes=2))
        row, inputs = row + 1, ("rope",)
    label = "Σ relu(q kᵀ)"
    if part.head_weights:
        column = max(cell.column + cell.span for cell in cells)
        cells.append(Cell("weights", column, 0, (X,)))
        inputs, label = (*inputs, "weights"), "Σ w relu(q kᵀ)"
    cells.append(Cell("scores", 0, row, inputs, 2, label))
    top = f"top {part.top_pools} pools, and the newest keys"
    cells.append(operation("top", 0, row + 1, ("scores",), 2, top, ("top",)))
    return Inside(tuple(cells), "top")
