"""Drawing of native sparse attention."""

from archetype.parts.native_sparse_attention.spec import BRANCHES, NativeSparseAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation

COLUMNS = {"compressed": 1, "selected": 3, "window": 4}  # of keys; their wires pass no other cell


@inside_of(NativeSparseAttention)
def native_sparse_attention(part: NativeSparseAttention, modules: frozenset[str]) -> Inside:
    """Draw the keys of each branch, the weights of compressed blocks that select blocks, and the gated sum."""
    cells = [Cell("q", 0, 0, (X,)), Cell("gate", 5, 0, (X,), label="gates")]
    for branch in part.with_keys:
        label = "k, v" if part.shared_keys else f"k, v {branch}"
        cells.append(Cell(f"keys.{branch}", COLUMNS[branch], 0, (X,), 1, label, (f"k.{branch}", f"v.{branch}")))
    suffix = ""
    if part.position is not None:
        suffix, gives = ".rope", {"q": "q", "keys.selected": "k"}
        for cell in [cell for cell in cells if cell.name != "gate"]:
            label, name = f"rotate {cell.name[0]}", f"{cell.name}.rope"
            probe = gives.get(cell.name, "")
            cells.append(Cell(name, cell.column, 1, (cell.name,), 1, label, kind="position", slim=True, gives=probe))
    keys = {branch: f"keys.{branch if branch in part.with_keys else 'selected'}{suffix}" for branch in BRANCHES}
    block, selection = part.compression, part.selection
    rows = tuple(sorted(name for name in modules if name.startswith("compress.")))
    label = f"{'map' if rows else 'mean'} of {block.block}" + f", every {block.step}" * (block.step < block.block)
    kind = "" if rows else "operation"
    cells.append(Cell("compress", 1, 2, (keys["compressed"],), 1, label, rows, kind, slim=not rows))
    best = f"top {selection.top_blocks} blocks of {selection.block}"
    cells.append(operation("top", 2, 4, ("compressed",), 1, best, ("top",)))
    for branch, column, row, inputs, span, read in (
        ("compressed", 1, 3, ("compress",), 1, "T/s"),
        ("selected", 2, 5, ("top", keys["selected"]), 2, "j"),
        ("window", 4, 5, (keys["window"],), 1, "W"),
    ):
        counted, shape = (f"{branch}.scores", f"{branch}.mixture"), f"(B, H, T, {read})"
        cells.append(Cell(branch, column, row, (f"q{suffix}", *inputs), span, "softmax(q kᵀ) v", counted, shape=shape))
    terms = (*BRANCHES, "gate")
    cells.append(operation("sum", 0, 6, terms, 6, "Σ σ(gate) · y", gives="heads"))
    cells.append(Cell("o", 2, 7, ("sum",)))
    return Inside(tuple(cells), "o")
