"""Drawing of feed-forward networks, alone and as experts."""

from archetype.parts.convolutions.diagram import with_convolutions
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.roles.drawing import Cell, Inside, X, inside_of, title

PLACES = {"hidden": "act", "output": "down"}  # cells in which convolutions are drawn


@inside_of(MLP)
def mlp(part: MLP, modules: frozenset[str]) -> Inside:
    return with_convolutions(Inside(tuple(network_cells(part, "", 1, 0)), "down"), part.convolutions, PLACES)


@inside_of(GatedMLP)
def gated_mlp(part: GatedMLP, modules: frozenset[str]) -> Inside:
    return with_convolutions(Inside(tuple(network_cells(part, "", 0.5, 0)), "down"), part.convolutions, PLACES)


def network_width(part: MLP | GatedMLP) -> int:
    return 2 if isinstance(part, GatedMLP) else 1


def network_cells(part: MLP | GatedMLP, prefix: str, column: float, row: int) -> list[Cell]:
    """Return the cells of a network, whose module names start with `prefix`, such as `experts.`."""
    act = title(part.activation)

    def cell(name: str, column: float, row: int, inputs: tuple[str, ...]) -> Cell:
        parameters = (f"{prefix}{name}", f"{prefix}{name}_bias", f"{prefix}{name}_gain")
        return Cell(f"{prefix}{name}", column, row, inputs, label=name, rows=parameters)

    def after(column: float) -> list[Cell]:
        # the projection back, behind the norm of the hidden features
        if part.hidden_norm.is_absent:
            return [cell("down", column, row + 2, (f"{prefix}act",))]
        norm = f"{prefix}hidden_norm"
        normed = Cell(norm, column, row + 2, (f"{prefix}act",), kind="norm", slim=True, label="hidden norm")
        return [normed, cell("down", column, row + 3, (norm,))]

    if isinstance(part, GatedMLP):
        up = "up" if part.up_bound is None else "bounded up"
        up = f"(1 + {up})" if part.unit_offset else up
        product = f"{act}(gate) × {up}"
        return [
            cell("gate", column, row, (X,)),
            cell("up", column + 1, row, (X,)),
            Cell(
                f"{prefix}act",
                column,
                row + 1,
                (f"{prefix}gate", f"{prefix}up"),
                2,
                product,
                kind="operation",
                slim=True,
                gives="" if prefix else "hidden",
                rows=(f"{prefix}activation",),
            ),
            *after(column + 0.5),
        ]
    return [
        cell("up", column, row, (X,)),
        Cell(
            f"{prefix}act",
            column,
            row + 1,
            (f"{prefix}up",),
            1,
            act,
            slim=True,
            kind="operation",
            gives="" if prefix else "hidden",
            rows=(f"{prefix}activation",),
        ),
        *after(column),
    ]
