"""Drawing of compressed attention."""

from archetype.parts.compressed_attention.spec import CompressedAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(CompressedAttention)
def compressed_attention(part: CompressedAttention, modules: frozenset[str]) -> Inside:
    """Draw queries, the keys of a window, pooled keys, and the choice of these (DeepSeek-AI 2026, figure 3)."""
    cells = [
        Cell("q_down", 0, 0, (X,)),
        Cell("q_norm", 0, 1, ("q_down",), kind="norm", slim=True, label="norm"),
        Cell("q_up", 0, 2, ("q_norm",)),
        Cell("query_norm", 0, 3, ("q_up",), kind="norm", slim=True, label="norm of each head"),
        Cell("rope_q", 0, 4, ("query_norm",), label="rotate q", kind="position", slim=True, gives="q"),
        Cell("kv", 1, 0, (X,)),
        Cell("kv_norm", 1, 1, ("kv",), kind="norm", slim=True, label="norm"),
        Cell("rope_k", 1, 4, ("kv_norm",), label="rotate k", kind="position", slim=True),
    ]
    inputs, width = ["rope_q", "rope_k"], 2
    if part.pooling is not None:
        inputs.append(_pool(cells, "pool", part.pooling.rate, width))
        width += 1
    if part.index is not None:
        keys = _pool(cells, "index.pool", part.index.head_dim and part.pooling.rate, width)  # type: ignore[union-attr]
        cells.append(Cell("index.q", width + 1, 2, ("q_norm",), label="q of the index"))
        cells.append(Cell("index.weights", width + 2, 0, (X,), label="weights of heads"))
        best = f"top {part.index.top_k} pooled keys"
        cells.append(operation("index", width, 5, (keys, "index.q", "index.weights"), 3, best, ("index.scores",)))
        inputs.append("index")
        width += 3
    rows = ("scores", "mixture", "sinks")
    cells += [
        Cell("scores", 0, 6, tuple(inputs), width, "softmax(q kᵀ) k", rows, shape="(B, H, T, S)"),
        Cell("rope_back", 0, 7, ("scores",), width, "rotate back", kind="position", slim=True, gives="heads"),
        Cell("o_down", 0, 8, ("rope_back",), label=f"o down, {part.groups} groups"),
        Cell("o_up", 0, 9, ("o_down",), label="o up"),
    ]
    return Inside(tuple(cells), "o_up")


def _pool(cells: list[Cell], name: str, rate: int, column: int) -> str:
    rows = (f"{name}.kv", f"{name}.gate", f"{name}.offsets")
    cells.append(Cell(name, column, 0, (X,), label=f"pool {rate} positions", rows=rows))
    cells.append(Cell(f"{name}.norm", column, 1, (name,), kind="norm", slim=True, label="norm"))
    rope = Cell(f"{name}.rope", column, 4, (f"{name}.norm",), label="rotate", kind="position", slim=True)
    cells.append(rope)
    return rope.name
