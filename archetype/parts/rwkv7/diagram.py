"""Drawing of RWKV-7."""

from archetype.parts.rwkv7.spec import MIXED, RWKV7
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(RWKV7)
def rwkv7(part: RWKV7, modules: frozenset[str]) -> Inside:
    """Draw the mix with the previous token, the delta rule, and the gated norm with a bonus (Peng 2025, figure 1)."""
    mixes, values = tuple(f"mix_{name}" for name in MIXED), ("v", "value_share", "value_share_down", "value_share_up")
    decay = ("removed", "key_rate", *(f"{name}{end}" for name in ("decay", "rate") for end in ("", "_down", "_up")))
    rule = ("scores", "mixture", "memory")
    cells = (
        Cell("mix", 0, 0, (X,), 5, "mix with x of t − 1", rows=mixes, lanes=5),
        Cell("r", 0, 1, ("mix",)),
        Cell("k", 1, 1, ("mix@1",)),
        Cell("values", 2, 1, ("mix@2",), label="v" if part.values_from is None else "v, with v₀", rows=values),
        Cell("decays", 3, 1, ("mix@3",), label="decays w, rates a", rows=decay),
        Cell("gate", 4, 1, ("mix@4",), rows=("gate_down", "gate_up")),
        Cell("rule", 0, 2, ("r", "k", "values", "decays"), 4, "generalized delta rule", rule, shape="(B, T, D)"),
        Cell("norm", 0, 3, ("rule", "gate"), 5, "(norm(y) + bonus) × gate", rows=("norm", "bonus"), kind="norm"),
        Cell("o", 2, 4, ("norm",)),
    )
    return Inside(cells, "o")
