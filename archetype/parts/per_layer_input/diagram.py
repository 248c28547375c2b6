"""Drawing of per-layer inputs."""

from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation, title
from archetype.roles.norm import Norm


@inside_of(PerLayerInput)
def per_layer_input(part: PerLayerInput, modules: frozenset[str]) -> Inside:
    def normed(name: str, norm: Norm) -> list[Cell]:
        return [] if norm.is_absent else [Cell(name, 0, 0, label=title(norm), kind="norm", slim=True)]

    product = operation("product", 0, 0, span=2, label=f"{title(part.activation)}(gate) × layer's own")
    before, after = normed("input_norm", part.input_norm), normed("added_norm", part.added_norm)
    cells = [*before, Cell("gate", 0, 0), product, Cell("down", 0, 0), *after]
    reads = [X, *(cell.name for cell in cells)]  # each cell reads the one before it
    chain = tuple(cell._replace(row=row, inputs=(reads[row],)) for row, cell in enumerate(cells))
    return Inside(chain, reads[-1])
