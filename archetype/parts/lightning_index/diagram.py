"""Drawing of the lightning index."""

from archetype.parts.lightning_index.spec import LightningIndex
from archetype.roles.drawing import QUERIES, Cell, Inside, X, inside_of, layer_name, operation


@inside_of(LightningIndex)
def lightning_index(part: LightningIndex, modules: frozenset[str]) -> Inside:
    """Draw a small attention whose scores select keys (DeepSeek-AI 2025, figure 2)."""
    if part.from_layer is not None:
        label = f"top {part.top_k} keys of {layer_name(part.from_layer)}"
        return Inside((operation("top", 0, 1, span=2, label=label),), "top")
    cells = [Cell("q", 0, 0, (QUERIES,)), Cell("k", 1, 0, (X,)), Cell("weights", 2, 0, (X,))]
    row, key = 1, "k"
    if not part.norm.is_absent:
        cells.append(Cell("k_norm", 1, row, (key,), kind="norm", slim=True, label="k norm"))
        row, key = row + 1, "k_norm"
    turned: tuple[str, ...] = ("q", key)
    if part.position is not None:
        cells.append(Cell("rope", 0, row, turned, 2, "rotate (RoPE)", kind="position", slim=True, lanes=2))
        row, turned = row + 1, ("rope",)
    cells.append(Cell("scores", 0, row, (*turned, "weights"), 3, "Σ w · ReLU(q kᵀ)", shape="(B, T, S)"))
    top = f"top {part.top_k} keys"
    cells.append(operation("top", 0, row + 1, ("scores",), 3, top, ("top",)))
    return Inside(tuple(cells), "top")
