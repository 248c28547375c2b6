"""Drawing of vectors of n-grams."""

from archetype.parts.ngram.spec import NgramEmbedding, NgramMemory
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(NgramEmbedding)
def ngram_embedding(part: NgramEmbedding, modules: frozenset[str]) -> Inside:
    tables = f"{part.num_rows} tables by 2 to {part.n} tokens"
    return Inside((Cell("table", 0, 0, (), 2, tables), Cell("projections", 0, 1, ("table",), 2)), "projections")


@inside_of(NgramMemory)
def ngram_memory(part: NgramMemory, modules: frozenset[str]) -> Inside:
    """Draw a lookup that the stream gates (Cheng 2026, figure 1)."""
    lookup = f"{part.heads} hashes of 2 to {part.n} tokens"
    cells = [
        Cell("table", 1, 0, (), 2, lookup),
        Cell("key", 1, 1, ("table",)),
        Cell("value", 2, 1, ("table",)),
    ]
    query, key, row = X, "key", 2
    if not part.norm.is_absent:
        cells += [
            Cell("query_norm", 0, 2, (X,), kind="norm", slim=True, label="query norm"),
            Cell("key_norm", 1, 2, ("key",), kind="norm", slim=True, label="key norm"),
        ]
        query, key, row = "query_norm", "key_norm", 3
    else:
        cells.append(operation("query", 0, 1, (X,), label="x"))  # its wire goes past the table
        query = "query"
    cells.append(operation("gate", 0, row, (query, key, "value"), 3, "σ(√(q k)) × value"))
    below = "gate"
    if not part.norm.is_absent:
        row, below = row + 1, "conv_norm"
        cells.append(Cell("conv_norm", 0, row, ("gate",), 2, kind="norm", slim=True, label="norm"))
    cells.append(Cell("conv", 0, row + 1, (below,), 2))
    cells.append(operation("sum", 0, row + 2, ("conv", "gate@2"), 3, "value + SiLU(conv)"))
    return Inside(tuple(cells), "sum")
