"""Drawing of per-layer inputs."""

from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation, title


@inside_of(PerLayerInput)
def per_layer_input(part: PerLayerInput, modules: frozenset[str]) -> Inside:
    product = f"{title(part.activation)}(gate) × layer's own"
    cells = (
        Cell("gate", 0, 0, (X,)),
        operation("product", 0, 1, ("gate",), 2, product),
        Cell("down", 0, 2, ("product",)),
    )
    return Inside(cells, "down")
