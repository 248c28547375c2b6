"""Drawing of a mixture of experts."""

from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.diagram import network_cells, network_width
from archetype.roles.drawing import Cell, Group, Inside, X, inside_of, operation, title


@inside_of(MixtureOfExperts)
def experts(part: MixtureOfExperts, modules: frozenset[str]) -> Inside:
    """Draw a router, stacked experts, and optionally a shared expert (Shazeer 2017; Dai 2024)."""
    cells = network_cells(part.expert, "experts.", 0, 1)
    groups = [Group(f"{part.num_computed} experts", tuple(cell.name for cell in cells), part.num_computed)]
    column = network_width(part.expert) + 0.25
    chosen = f"top {part.experts_per_token} of {part.num_experts + part.idle}"
    chosen += f", and {part.always} always" if part.always else ""
    cells.append(Cell("router", column, 1, (X,), gives="router_logits"))
    cells.append(operation("top", column, 2, ("router",), label=chosen, rows=("top", "expert_scales"), gives="weights"))
    inputs = ["experts.down", "top"]
    column += 1
    routed_columns = column
    if part.shared is not None:
        column += 0.25
        shared = network_cells(part.shared, "shared.", column, 1)
        cells += shared
        groups.append(Group("shared", tuple(cell.name for cell in shared)))
        column += network_width(part.shared)
        inputs.append("shared.down")
        if part.shared_gate:
            column += 0.25
            cells.append(Cell("shared_gate", column, 1, (X,), label="shared gate"))
            inputs.append("shared_gate")
            column += 1
    label = "Σ weight · expert(x)" if part.weighs == "outputs" else "Σ expert(weight · x)"
    label += f", {part.idle} are idle" if part.idle else ""
    if part.latent_width is None:
        cells.append(operation("weighted", 0, 5, tuple(inputs), column, label))
        return _normed(part, Inside(tuple(cells), "weighted", tuple(groups)))
    routed = [
        cell._replace(inputs=("latent_down",)) if cell.inputs == (X,) and cell.name.startswith("experts.") else cell
        for cell in cells
    ]
    cells = [Cell("latent_down", 0, 0, (X,), label="latent down"), *routed]
    own = ("experts.down", "top")
    cells.append(operation("weighted", 0, 5, own, routed_columns, label))
    below = "weighted"
    if not part.latent_norm.is_absent:
        below = "latent_norm"
        cells.append(Cell(below, 0, 6, ("weighted",), label=title(part.latent_norm), kind="norm", slim=True))
    row = 6 + (below == "latent_norm")
    cells.append(Cell("latent_up", 0, row, (below,), label="latent up"))
    if part.shared is None:
        return _normed(part, Inside(tuple(cells), "latent_up", tuple(groups)))
    inputs[:2] = ["latent_up"]
    cells.append(operation("sum", 0, row + 1, tuple(inputs), column, "routed + shared"))
    return _normed(part, Inside(tuple(cells), "sum", tuple(groups)))


def _normed(part: MixtureOfExperts, drawn: Inside) -> Inside:
    # a norm below all but the router
    if part.norm.is_absent:
        return drawn
    cells = [cell._replace(row=cell.row + 1) for cell in drawn.cells]
    below = [
        cell if cell.name == "router" else cell._replace(inputs=tuple("norm" if x == X else x for x in cell.inputs))
        for cell in cells
    ]
    norm = Cell("norm", 0, 0, (X,), label=title(part.norm), kind="norm", slim=True)
    return drawn._replace(cells=(norm, *below))
