"""Drawing of disentangled attention."""

from archetype.parts.disentangled_attention.spec import DisentangledAttention
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(DisentangledAttention)
def disentangled_attention(part: DisentangledAttention, modules: frozenset[str]) -> Inside:
    """Draw queries, keys and values of tokens, and the vectors of relative positions (He 2020, figure 1)."""
    products = ("position_k", "position_k_scores", "position_q", "position_q_scores")
    distance_modules = tuple(name for name in products if name in modules)
    cells = (
        Cell("q", 0, 0, (X,)),
        Cell("k", 1, 0, (X,)),
        Cell("v", 2, 0, (X,)),
        Cell("distances", 3, 0, (), label="vectors of distances", rows=distance_modules, kind="position"),
        Cell("scores", 0, 1, ("q", "k", "distances"), 2, _scores(part), shape="(B, H, T, S)", gives="weights"),
        Cell("mixture", 0, 2, ("scores", "v"), 3, "weights · v", shape="(B, T, D)", gives="heads"),
        Cell("o", 1, 3, ("mixture",)),
    )
    return Inside(cells, "o")


def _scores(part: DisentangledAttention) -> str:
    terms = ["q kᵀ", *["q rₖᵀ"] * part.content_to_position, *["r_q kᵀ"] * part.position_to_content]
    return f"softmax(({' + '.join(terms)}) / √{len(terms)}P)"
