"""Drawing of a block on a residual stream, with its sublayers connected according to its wiring."""

from typing import NamedTuple

from archetype.diagram.captions import facts, mixer_facts
from archetype.diagram.costs import LayerCosts, ReportCosts
from archetype.diagram.rail import Rail
from archetype.diagram.scene import Box
from archetype.diagram.sublayer import SLIM, Sublayer, W, extent, sublayer_layout
from archetype.models.block.diagram import contents
from archetype.models.block.spec import Block
from archetype.models.stack.cost import StackCost
from archetype.roles.drawing import Branch, Inside, inside, title, with_equals_once
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.spec.edit import index_text
from archetype.spec.registry import provided


class Kind(NamedTuple):
    """Group of equal layers in a stack."""

    block: Block
    layers: tuple[int, ...]


def put_block(rail: Rail, path: str, kind: Kind, stack: StackCost, costs: ReportCosts) -> None:
    """Draw the sublayers of a block on a residual stream."""
    layer_costs = costs.of_layers(stack, kind.layers)
    box = _box(path, "wiring", title(kind.block.wiring), f"{field_of(kind, stack)}.wiring", layer_costs)
    if box.cost.parameters or box.cost.flops:  # a registered wiring may have weights
        rail.put(box)
    put_branches(rail, path, kind, stack, layer_costs, tuple(contents(kind.block)))


def branches_of(kind: Kind, stack: StackCost, costs: ReportCosts) -> list[tuple[str, ...]]:
    """Return the names of a block's sublayers. Sublayers that are computed in parallel form a group."""
    names = tuple(contents(kind.block))
    is_parallel = len(names) == 2 and _branch(kind.block, costs.of_layers(stack, kind.layers)).parallel
    return [names] if is_parallel else [(name,) for name in names]


def is_scaled(block: Block, names: tuple[str, ...]) -> bool:
    """Return whether the output of these sublayers is that of a block which multiplies it by a learned scale."""
    return block.output_scale and names[-1:] == tuple(contents(block))[-1:]


def put_branches(
    rail: Rail, path: str, kind: Kind, stack: StackCost, layer_costs: LayerCosts, names: tuple[str, ...]
) -> None:
    """Draw sublayers of a block next to the residual stream, connected according to the block's wiring."""
    _put_wired(rail, path, kind, stack, layer_costs, names)
    if is_scaled(kind.block, names):
        field = f"{field_of(kind, stack)}.output_scale"
        rail.put(_box(path, "output_scale", "× learned scale", field, layer_costs))


def _put_wired(
    rail: Rail, path: str, kind: Kind, stack: StackCost, layer_costs: LayerCosts, names: tuple[str, ...]
) -> None:
    field = field_of(kind, stack)
    parts = {name: part for name, part in contents(kind.block).items() if name in names}
    drawings = {name: inside(part, layer_costs.modules(name), function) for name, (part, function) in parts.items()}
    if rail.legible is not None:
        drawings = {name: with_equals_once(drawing) for name, drawing in drawings.items()}
    branch = _branch(kind.block, layer_costs)

    def norm_of(sublayer: str, ending: str) -> Box | None:
        wiring = kind.block.wiring  # a registered wiring may lack norms
        if not ending or not hasattr(wiring, "norm") or (norm := wiring.norm_of(sublayer, ending)).is_absent:
            return None
        # as the module and its cost row are called: mixer_norm, feedforward_post_norm
        name = f"{sublayer}_{ending}"
        return _box(path, name, title(norm), f"{field}.wiring", layer_costs, "norm", layer_costs.shape(name))

    def carry(*names: str) -> None:  # boxes that several residual streams pass before a sublayer or block reads them
        residual, field = stack.stack.residual, f"{stack.prefix}residual"
        first, residuals = next(iter(kind.block.contents)), layer_costs.block.residuals
        rows = [f"{name}_residual" for name in names] + ["residual"] * (first in names)
        for row in () if residual.is_sum else [row for row in rows if row in residuals]:
            rail.put(_box(path, row, title(residual), field, layer_costs))

    columns = max(
        [3.0 if rail.legible is None else 1.0, *(end - start for start, end in map(extent, drawings.values()))]
    )
    laid_out = {
        name: _sublayer(f"{path}.{name}", part, drawings[name], layer_costs, field, columns, rail)
        for name, (part, _) in parts.items()
    }
    if branch.parallel and len(laid_out) == 2:
        second = None if branch.shared_norm else norm_of("feedforward", branch.before)
        norms = (norm_of("mixer", branch.before), second)
        carry("mixer", "feedforward")
        rail.parallel(path, laid_out["mixer"], laid_out["feedforward"], norms, branch.shared_norm)
        return
    for name, sublayer in laid_out.items():
        carry(name)
        before, after, behind = (norm_of(name, ending) for ending in (branch.before, branch.after, branch.behind))
        # every wiring adds the encoder's contribution to its query's vector
        rail.branch(f"{path}.{name}", sublayer, before, after, behind, branch.residual or name == "cross")
        for ending in layer_costs.block.wiring.further_parameters(name):
            rail.put(_box(path, f"{name}_{ending}", ending, f"{field}.wiring", layer_costs))


def _box(
    path: str, row: str, label: str, field: str, costs: LayerCosts, kind: str = "operation", shape: str = ""
) -> Box:
    # it takes the cost of the row in each of the layers
    cost = costs.take(row)
    return Box(f"{path}.{row}", 0, 0, W, SLIM, kind, label, shape, costs.count, cost, field=field, sets=costs.owners)


def field_of(kind: Kind, stack: StackCost) -> str:
    """Return the path of the layers in the notation of `diff`: layers[*], encoder.layers[1::2]."""
    return stack.stack.field(index_text(list(kind.layers), len(stack.stack.layers)))


def captions(name: str, part: Mixer | FeedForward, costs: LayerCosts) -> list[str]:
    further = mixer_facts(costs.block.mixer, costs.stack.stack.causal) if name == "mixer" else []
    return facts(part) + further


def _branch(block: Block, costs: LayerCosts) -> Branch:
    # an unknown wiring is judged by the norms in its cost
    if (function := provided("diagram", type(block.wiring))) is not None:
        return function(block.wiring)
    _, post_norm = costs.block.wiring.parameters("mixer")
    return Branch(before="norm", after="post_norm" if post_norm else "")


def _sublayer(
    path: str, part: Mixer | FeedForward, drawing: Inside, costs: LayerCosts, field: str, columns: float, rail: Rail
) -> Sublayer:
    name = path.rpartition(".")[2]
    heading, lines = title(part), captions(name, part, costs)
    if name == "cross":
        heading, field = "Cross-attention", f"{field}.cross_attention"
    else:
        field = f"{field}.{name}"
    return sublayer_layout(
        path, name, heading, lines, drawing, costs, field, columns, rail.letters, rail.legible, rail.counts
    )
