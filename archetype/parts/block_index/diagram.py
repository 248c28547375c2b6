"""Drawing of the block index."""

from archetype.parts.block_index.spec import BlockIndex
from archetype.roles.drawing import QUERIES, Cell, Inside, X, inside_of, operation


@inside_of(BlockIndex)
def block_index(part: BlockIndex, modules: frozenset[str]) -> Inside:
    """Draw a small attention whose pooled scores select blocks of keys."""
    cells, row, inputs = [Cell("q", 0, 0, (X,)), Cell("k", 1, 0, (X,))], 1, tuple("qk")
    if not part.own_projections:
        cells, row, inputs = [], 0, (QUERIES,)
    if not part.norm.is_absent:
        for column, name in enumerate("qk"):
            cells.append(Cell(f"{name}_norm", column, row, (name,), kind="norm", slim=True, label=f"{name} norm"))
        row, inputs = row + 1, ("q_norm", "k_norm")
    if part.position is not None:
        cells.append(Cell("rope", 0, row, inputs, 2, "rotate (RoPE)", kind="position", slim=True, lanes=2))
        row, inputs = row + 1, ("rope",)
    cells.append(Cell("scores", 0, row, inputs, 2, "q kᵀ", shape="(B, H, T, S)"))
    label = f"{part.pooling} of blocks of {part.block}"
    cells.append(operation("pool", 0, row + 1, ("scores",), 2, label))
    top = f"top {part.top_blocks} blocks, {part.local_blocks} local"
    cells.append(operation("top", 0, row + 2, ("pool",), 2, top, ("top",)))
    return Inside(tuple(cells), "top")
