"""Drawing of RWKV-4."""

from archetype.parts.rwkv4.spec import RWKV4
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(RWKV4)
def rwkv4(part: RWKV4, modules: frozenset[str]) -> Inside:
    """Draw the mix with the previous token, the weighted sums, and their gate (Peng 2023, figure 2)."""
    cells = (
        Cell("mix", 0, 0, (X,), 3, "mix with x of t − 1", rows=("mix_r", "mix_k", "mix_v"), lanes=3),
        *(Cell(name, column, 1, (f"mix@{column}",)) for column, name in enumerate("rkv")),
        Cell("wkv", 1, 2, ("k", "v"), 2, "Σ exp(k) v / Σ exp(k)", rows=("decay", "bonus"), gives="wkv"),
        operation("gated", 0, 3, ("r", "wkv"), 3, "σ(r) × wkv", gives="o.in"),
        Cell("o", 1, 4, ("gated",)),
    )
    return Inside(cells, "o")
