"""Drawing of feed-forward networks, alone and as experts."""

from archetype.parts.convolutions.diagram import with_convolutions
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation, title

PLACES = {"hidden": "act", "output": "down"}  # cells in which convolutions are drawn


@inside_of(MLP, GatedMLP)
def network(part: MLP | GatedMLP, modules: frozenset[str]) -> Inside:
    column = (3 - network_width(part)) / 2  # in the middle of three
    return with_convolutions(Inside(tuple(network_cells(part, "", column, 0)), "down"), part.convolutions, PLACES)


def network_width(part: MLP | GatedMLP) -> int:
    return 2 if isinstance(part, GatedMLP) else 1


def network_cells(part: MLP | GatedMLP, prefix: str, column: float, row: int) -> list[Cell]:
    """Return the cells of a network, whose module names start with `prefix`, such as `experts.`."""

    def cell(name: str, column: float, row: int, inputs: tuple[str, ...]) -> Cell:
        parameters = (f"{prefix}{name}", f"{prefix}{name}_bias", f"{prefix}{name}_gain")
        return Cell(f"{prefix}{name}", column, row, inputs, label=name, rows=parameters)

    if isinstance(part, GatedMLP):
        up = "up" if part.up_bound is None else "bounded up"
        up = f"(1 + {up})" if part.unit_offset else up
        inputs = [cell("gate", column, row, (X,)), cell("up", column + 1, row, (X,))]
        label, middle = f"{title(part.activation)}(gate) × {up}", column + 0.5
    else:
        inputs, label, middle = [cell("up", column, row, (X,))], title(part.activation), column
    read, gives = tuple(each.name for each in inputs), "" if prefix else "hidden"
    act = operation(f"{prefix}act", column, row + 1, read, len(read), label, (f"{prefix}activation",), gives)
    if part.hidden_norm.is_absent:
        return [*inputs, act, cell("down", middle, row + 2, (act.name,))]
    norm = Cell(f"{prefix}hidden_norm", middle, row + 2, (act.name,), kind="norm", slim=True, label="hidden norm")
    return [*inputs, act, norm, cell("down", middle, row + 3, (norm.name,))]
