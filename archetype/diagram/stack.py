"""A stack of blocks on the rail: equal layers folded; where layers differ, each kind of block beside the stack."""

from collections.abc import Sequence
from typing import NamedTuple

from archetype.diagram.captions import facts, mixer_facts, title
from archetype.diagram.costs import LayerCosts, ReportCosts
from archetype.diagram.inside import Inside, cross_attention, inside
from archetype.diagram.rail import GAP, PAD, SLIM, Content, Rail, W, content_layout, extent, norm_box
from archetype.diagram.scene import Box, Container, Cost, Note
from archetype.models.block.spec import Block, OutputNorm, ParallelResidual, Plain, PostNorm, PreNorm, SandwichNorm
from archetype.models.stack.cost import StackCost, label
from archetype.parts.feedforward.spec import NoFeedForward
from archetype.parts.norm.spec import NoNorm
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.spec.edit import index_text
from archetype.spec.repeats import runs

MARGIN = 10.0  # between a block's container and what it holds
MOST_ROWS = 40  # of a stack; one that folds into no fewer is shown by its kinds of blocks
MOST_UNFOLDED = 128  # layers that can be drawn each for itself
MOST_PANELS = 12  # kinds of blocks that are drawn; further ones are boxes
PANELS_IN_A_ROW = 4
LETTERS_OF = {
    "encoder.": {"T": "S"}, "global_model.": {"T": "M", "S": "M"}, "local_model.": {"B": "BM", "T": "J", "S": "J"},
}  # fmt: skip
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Kind(NamedTuple):
    """Equal layers of a stack."""

    block: Block
    layers: tuple[int, ...]


def kinds_of(stack: StackCost) -> list[Kind]:
    """The distinct blocks of a stack with their layers, in the order in which they first stand."""
    layers: dict[int, list[int]] = {}
    for group in stack.groups:  # groups of equal blocks whose costs differ have one cost object
        layers.setdefault(id(group.cost), []).extend(group.layers)
    blocks = {id(group.cost): group.cost.block for group in stack.groups}
    return sorted((Kind(blocks[key], tuple(sorted(places))) for key, places in layers.items()), key=lambda k: k.layers)


def put_stack(rail: Rail, stack: StackCost, costs: ReportCosts, unfold: bool = False) -> None:
    """Put the layers of a stack on a rail.

    Args:
        rail: of the stack.
        stack: with its costs.
        costs: of the model.
        unfold: put each layer there for itself, where there are at most `MOST_UNFOLDED`.
    """
    kinds, number = kinds_of(stack), len(stack.stack.layers)
    if unfold and 1 < number <= MOST_UNFOLDED:
        blocks = {layer: kind.block for kind in kinds for layer in kind.layers}
        for layer in sorted(blocks):
            start = rail.y
            place, kind = f"{stack.prefix}blocks.{layer}", Kind(blocks[layer], (layer,))
            rail.y += MARGIN
            put_block(rail, place, kind, stack, costs)
            _block_container(rail, place, kind, stack, start + GAP / 2, f"layer {layer}")
        return
    if len(kinds) == 1:
        start = rail.y
        place = f"{stack.prefix}blocks.*" if number > 1 else f"{stack.prefix}blocks.0"
        rail.y += MARGIN
        put_block(rail, place, kinds[0], stack, costs)
        _block_container(rail, place, kinds[0], stack, start + GAP / 2, f"× {number}" if number > 1 else "")
        return
    _put_layers(rail, kinds, stack)
    put_panels(rail, kinds, stack, costs)


def put_panels(rail: Rail, kinds: list[Kind], stack: StackCost, costs: ReportCosts) -> None:
    """Each kind of block beside the rail, from the left, in rows."""
    left = rail.right + 3 * MARGIN if rail.right > W else W / 2 + 5 * MARGIN
    x, y, row = left, rail.floor + GAP, 0.0
    for index, kind in enumerate(kinds[:MOST_PANELS]):
        panel = Rail()
        place = f"{stack.prefix}blocks.{label(kind.layers)}"
        panel.put(Box(f"{place}.in", 0, 0, 44, SLIM, "input", "x", repeat=len(kind.layers)))
        put_block(panel, place, kind, stack, costs)
        panel.put(Box(f"{place}.out", 0, 0, 44, SLIM, "output", "x′", repeat=len(kind.layers)))
        panel.y += MARGIN
        times = f" × {len(kind.layers)}" if len(kind.layers) > 1 else ""
        _block_container(panel, place, kind, stack, 0, f"{LETTERS[index]}{times}", f"layer{index % 6}")
        _, _, right, top = panel.layout.bounds
        if index and index % PANELS_IN_A_ROW == 0:
            x, y, row = left, y + row + 3 * GAP, 0.0
        dx = x + W / 2 + MARGIN
        rail.layout.join(panel.layout, dx, y)
        moved = [(tuple(panel.placed(box, dx, y) for box in boxes), bus + y) for boxes, bus in panel.waiting]
        rail.waiting += moved
        rail.right = max(rail.right, dx + right)
        x, row = dx + right + 4 * MARGIN, max(row, top)
    rest = kinds[MOST_PANELS:]
    if rest:
        cost = Cost()
        for kind in rest:
            cost = cost + costs.of_layers(stack, kind.layers).take_all()
        layers = sum(len(kind.layers) for kind in rest)
        box = Box(f"{stack.prefix}blocks.further", x + W / 2, y, 2 * W, 42, "layer",
                  f"{len(rest)} further kinds of blocks", f"{layers} layers", layers, cost)  # fmt: skip
        rail.layout.add(box)
        rail.right = max(rail.right, box.x + box.w)


def put_block(rail: Rail, place: str, kind: Kind, stack: StackCost, costs: ReportCosts) -> None:
    """The contents of a block, wired as its wiring says."""
    block, layer_costs = kind.block, costs.of_layers(stack, kind.layers)
    field = f"{stack.prefix}layers{layers_text(kind, stack)}"
    parts: dict[str, Mixer | FeedForward] = {"mixer": block.mixer}
    if block.cross_attention is not None:
        parts["cross"] = block.cross_attention
    if not isinstance(block.feedforward, NoFeedForward):
        parts["feedforward"] = block.feedforward
    drawings = {
        name: inside(part, layer_costs.modules(name), cross_attention if name == "cross" else None)
        for name, part in parts.items()
    }
    extents = [extent(drawing) for drawing in drawings.values()]
    columns = max(3.0, *(end - start for start, end in extents))
    contents = {
        name: _content(f"{place}.{name}", part, drawings[name], layer_costs, stack, field, columns)
        for name, part in parts.items()
    }
    norm = getattr(block.wiring, "norm", None)
    has_norm = isinstance(norm, Norm) and not isinstance(norm, NoNorm)

    def norm_of(content: str, ending: str = "norm") -> Box | None:
        if not has_norm:
            return None
        assert norm is not None
        return norm_box(f"{place}.{content}_{ending}", title(norm), layer_costs, f"{field}.wiring")

    if isinstance(block.wiring, ParallelResidual) and len(contents) == 2:
        first = norm_of("mixer")
        if first is not None:
            second = None if block.wiring.shared_norm else norm_of("feedforward")
            rail.parallel(place, contents["mixer"], contents["feedforward"], (first, second))
            return
    for name, content in contents.items():
        match block.wiring:
            case Plain():
                rail.branch(f"{place}.{name}", content, residual=name == "cross")
            case PostNorm():
                rail.branch(f"{place}.{name}", content, behind=norm_of(name))
            case OutputNorm():
                rail.branch(f"{place}.{name}", content, after=norm_of(name))
            case SandwichNorm():
                rail.branch(f"{place}.{name}", content, norm_of(name), norm_of(name, "post_norm"))
            case PreNorm() | ParallelResidual():
                rail.branch(f"{place}.{name}", content, norm_of(name))
            case _:  # of an extension: the norms that its cost counts
                before, after = (norm_of(name, ending) for ending in ("norm", "post_norm"))
                after = after if after is not None and after.cost.parameters else None
                rail.branch(f"{place}.{name}", content, before, after)


def layers_text(kind: Kind, stack: StackCost) -> str:
    """The layers as `diff` writes them: `[*]`, `[1::2]`."""
    return f"[{index_text(list(kind.layers), len(stack.stack.layers))}]"


def _content(
    place: str, part: Mixer | FeedForward, drawing: Inside, costs: LayerCosts, stack: StackCost, field: str,
    columns: float,
) -> Content:  # fmt: skip
    name = place.rpartition(".")[2]
    heading, lines = title(part), facts(part)
    if name == "cross":
        heading = "Cross-attention"
    elif isinstance(part, Mixer):
        lines = mixer_facts(part, costs.block.mixer, stack.stack.causal)
    fields = {"cross": "cross_attention"}
    own, cost = f"{field}.{fields.get(name, name)}", costs.block.contents[name]
    return content_layout(place, name, heading, lines, drawing, costs, own, cost, columns,
                          LETTERS_OF.get(stack.prefix, {}))  # fmt: skip


def _block_container(rail: Rail, place: str, kind: Kind, stack: StackCost, bottom: float, pill: str,
                 style: str = "fold") -> None:  # fmt: skip
    left, right, top = -W / 2 - MARGIN, rail.right + MARGIN, rail.y + MARGIN
    block, field = kind.block, f"{stack.prefix}layers{layers_text(kind, stack)}"
    extra = [f"{name} {getattr(block, name):g}" for name, usual in (("dropout", 0.0), ("residual_scale", 1.0))
             if getattr(block, name) != usual]  # fmt: skip
    lines = (f"layers {label(kind.layers)}", *extra)
    container = Container(
        place, left, bottom, right - left, top - bottom, "block", pill, lines, len(kind.layers), field
    )
    rail.layout.containers.insert(0, container)
    if pill:
        rail.layout.notes.append(Note(right - PAD, top, pill, "end", style))
    rail.right, rail.y = right, top


def _put_layers(rail: Rail, kinds: list[Kind], stack: StackCost) -> None:
    """The layers one by one, groups that repeat in a container."""
    code = {layer: index for index, kind in enumerate(kinds) for layer in kind.layers}
    codes = [code[layer] for layer in range(len(code))]
    start = 0
    rail.y += MARGIN
    folded = fold(codes)
    if sum(len(group) for _, group in folded) > MOST_ROWS:
        folded = [(1, [(index, len(kind.layers)) for index, kind in enumerate(kinds)])]
    for times, group in folded:
        bottom = rail.y + GAP / 2
        rail.y += MARGIN if times > 1 else 0
        for index, number in group:
            name = f"{LETTERS[index]}" if index < MOST_PANELS else "further"
            text = f"{name}  {kind_name(kinds[index].block)}"
            times_text = f"× {number}" if number > 1 else ""
            box = Box(f"{stack.prefix}layers.{start}", 0, 0, W, SLIM, f"layer{index % 6}", text, times_text,
                      number * times)  # fmt: skip
            rail.put(box)
            start += number
        if times > 1:
            start += (times - 1) * sum(number for _, number in group)
            top = rail.y + MARGIN
            place = f"{stack.prefix}layers.to.{start}"
            container = Container(place, -W / 2 - MARGIN, bottom, W + 2 * MARGIN, top - bottom, "repeat", f"× {times}",
                          (), times)  # fmt: skip
            rail.layout.containers.append(container)
            rail.layout.notes.append(Note(W / 2 + MARGIN - 8, top, f"× {times}", "end", "fold"))
            rail.y = top
    rail.y += MARGIN / 2


def kind_name(block: Block) -> str:
    """A block in a few words: mamba · experts."""
    parts = [block.mixer, block.feedforward]
    return " · ".join(str(getattr(part, "kind", "")) for part in parts if not isinstance(part, NoFeedForward))


def fold(codes: Sequence[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """A sequence as groups that repeat: (times, [(code, times in a row), ...])."""
    folded = []
    for times, group in runs(codes):
        if len(group) == 1:
            folded.append((1, [(group[0], times)]))
            continue
        inner: list[tuple[int, int]] = []
        for index in group:
            if inner and inner[-1][0] == index:
                inner[-1] = (index, inner[-1][1] + 1)
            else:
                inner.append((index, 1))
        folded.append((times, inner))
    return folded
