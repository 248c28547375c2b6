"""Drawing of a short convolution."""

from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(ShortConvolution)
def short_convolution(part: ShortConvolution, modules: frozenset[str]) -> Inside:
    """Draw a convolution between two gates (Liquid AI 2025)."""
    cells = (
        Cell("in_proj", 0, 0, (X,), 3),
        operation("product", 0, 1, ("in_proj",), 2, "b × x"),
        Cell("conv", 0.5, 2, ("product",)),
        operation("gated", 0, 3, ("conv", "in_proj@2"), 3, "c × conv", gives="out_proj.in"),
        Cell("out_proj", 1, 4, ("gated",)),
    )
    return Inside(cells, "out_proj")
