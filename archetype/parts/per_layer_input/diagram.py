"""Drawing of per-layer inputs."""

from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.roles.drawing import Cell, Inside, X, inside_of, title


@inside_of(PerLayerInput)
def per_layer_input(part: PerLayerInput, modules: frozenset[str]) -> Inside:
    product = f"{title(part.activation)}(gate) × layer's own"
    first, last = part.input_norm.is_absent, part.added_norm.is_absent
    cells = [
        *(() if first else (Cell("input_norm", 0, 0, (X,), 1, title(part.input_norm), kind="norm", slim=True),)),
        Cell("gate", 0, 1 - first, (X if first else "input_norm",)),
        Cell("product", 0, 2 - first, ("gate",), 2, product, kind="operation", slim=True),
        Cell("down", 0, 3 - first, ("product",)),
        *(
            ()
            if last
            else (Cell("added_norm", 0, 4 - first, ("down",), 1, title(part.added_norm), kind="norm", slim=True),)
        ),
    ]
    return Inside(tuple(cells), cells[-1].name)
