"""Drawing of native sparse attention."""

from archetype.parts.native_sparse_attention.spec import BRANCHES, NativeSparseAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(NativeSparseAttention)
def native_sparse_attention(part: NativeSparseAttention, modules: frozenset[str]) -> Inside:
    """Draw the keys of each branch, the weights of compressed blocks that select blocks, and the gated sum."""
    cells, rotated, width = [Cell("q", 0, 0, (X,))], ["q"], 1
    keys = dict.fromkeys(BRANCHES, "")
    for branch in part.with_keys:
        label = "k, v" if part.shared_keys else f"k, v {branch}"
        cells.append(Cell(f"keys.{branch}", width, 0, (X,), 1, label, (f"k.{branch}", f"v.{branch}")))
        rotated.append(f"keys.{branch}")
        keys[branch], width = f"keys.{branch}", width + 1
    if part.position is not None:
        for column, name in enumerate(rotated):
            label = "rotate q" if name == "q" else "rotate k"
            gives = {"q": "q", "keys.selected": "k"}.get(name, "")
            cells.append(Cell(f"{name}.rope", column, 1, (name,), 1, label, kind="position", slim=True, gives=gives))
        keys = {branch: name and f"{name}.rope" for branch, name in keys.items()}
    keys = {branch: name or keys["selected"] for branch, name in keys.items()}
    query = "q" if part.position is None else "q.rope"
    block, selection = part.compression, part.selection
    label = f"blocks of {block.block}" + ("" if block.step == block.block else f", every {block.step}")
    rows = tuple(sorted(name for name in modules if name.startswith("compress.")))
    label = f"{'map' if rows else 'mean'} of {label}"
    kind = "" if rows else "operation"
    cells.append(Cell("compress", 1, 2, (keys["compressed"],), 1, label, rows, kind, slim=not rows))
    kept = f"top {selection.top_blocks} blocks of {selection.block}"
    cells.append(Cell("top", 1, 4, ("compressed",), 2, kept, ("top",), slim=True, kind="operation"))
    for branch, column, row, inputs, span, label, letter in (
        ("compressed", 0, 3, ("compress",), 2, "softmax(q kᵀ) v of blocks", "N"),
        ("selected", 0, 5, (keys["selected"], "top"), 3, "softmax(q kᵀ) v of these", "S"),
        ("window", 3, 5, (keys["window"],), 1, f"window of {part.window}", "W"),
    ):
        rows, shape = (f"{branch}.scores", f"{branch}.mixture"), f"(B, H, T, {letter})"
        cells.append(Cell(branch, column, row, (query, *inputs), span, label, rows, shape=shape))
    cells.append(Cell("gate", 4, 0, (X,), label="gates"))
    terms = (*BRANCHES, "gate")
    cells.append(Cell("sum", 0, 6, terms, 5, "Σ σ(gate) · y", slim=True, kind="operation", gives="heads"))
    cells.append(Cell("o", 1, 7, ("sum",)))
    return Inside(tuple(cells), "o")
