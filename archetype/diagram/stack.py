"""Drawing of a stack of blocks on a residual stream, with equal layers folded and distinct blocks next to it."""

from collections.abc import Sequence
from dataclasses import replace

from archetype.diagram.block import Kind, field_of, put_block
from archetype.diagram.costs import ReportCosts
from archetype.diagram.rail import Rail
from archetype.diagram.scene import Box, Container, Cost, Note
from archetype.diagram.sublayer import GAP, PAD, SLIM, H, W
from archetype.models.block.spec import Block
from archetype.models.stack.cost import StackCost, label
from archetype.roles.drawing import title
from archetype.spec.repeats import runs

MARGIN = 10.0  # between a block's container and its contents
MOST_ROWS = 40  # a stack that folds into more rows is shown by its kinds of blocks
MOST_UNFOLDED = 128  # largest number of layers drawn separately
MOST_PANELS = 12  # largest number of kinds of blocks drawn; further ones are boxes
PANELS_IN_A_ROW = 4
TIE = W / 2 + 26  # x of wires of shared tables, left of the stream
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def kinds_of(stack: StackCost) -> list[Kind]:
    """Return the distinct blocks of a stack with their layers, in order of first occurrence."""
    layers: dict[int, list[int]] = {}
    for group in stack.groups:  # groups of equal blocks share the cost of their contents
        layers.setdefault(id(group.cost.wiring), []).extend(group.layers)
    blocks = {id(group.cost.wiring): group.cost.block for group in stack.groups}
    kinds = (Kind(blocks[key], tuple(sorted(indices))) for key, indices in layers.items())
    return sorted(kinds, key=lambda kind: kind.layers)


def put_stack(
    rail: Rail, stack: StackCost, costs: ReportCosts, unfold: bool = False, in_a_row: int = PANELS_IN_A_ROW
) -> None:
    """Draw the layers of a stack on a residual stream.

    Args:
        costs: rows of the model's cost report.
        unfold: whether to draw each layer separately, up to `MOST_UNFOLDED`.
        in_a_row: number of block kinds per row.
    """
    kinds, num_layers = kinds_of(stack), len(stack.stack.layers)
    if unfold and 1 < num_layers <= MOST_UNFOLDED:
        blocks = {layer: kind.block for kind in kinds for layer in kind.layers}
        for layer in sorted(blocks):
            start = rail.y
            path, kind = f"{stack.prefix}blocks.{layer}", Kind(blocks[layer], (layer,))
            rail.y += MARGIN
            put_block(rail, path, kind, stack, costs)
            _block_container(rail, path, kind, stack, start + GAP / 2, _pill(f"layer {layer}", (layer,), stack))
        return
    if len(kinds) == 1:
        start = rail.y
        path = f"{stack.prefix}blocks.*" if num_layers > 1 else f"{stack.prefix}blocks.0"
        rail.y += MARGIN
        put_block(rail, path, kinds[0], stack, costs)
        pill = _pill(f"× {num_layers}", kinds[0].layers, stack) if num_layers > 1 else ""
        _block_container(rail, path, kinds[0], stack, start + GAP / 2, pill)
        return
    letters = [LETTERS[index] if index < MOST_PANELS else "further" for index in range(len(kinds))]
    names = [f"{letter}  {kind_name(kind.block)}" for letter, kind in zip(letters, kinds, strict=True)]
    put_layers(rail, kinds, stack, names)
    put_panels(rail, kinds, stack, costs, in_a_row)


def put_panels(rail: Rail, kinds: list[Kind], stack: StackCost, costs: ReportCosts, in_a_row: int) -> None:
    """Draw one panel per distinct block next to the residual stream, in rows from left to right."""
    left = rail.right + 3 * MARGIN if rail.right > W else W / 2 + 5 * MARGIN
    x, y, row = left, rail.floor + GAP, 0.0
    for index, kind in enumerate(kinds[:MOST_PANELS]):
        panel = Rail(rail.letters)
        path = f"{stack.prefix}blocks.{label(kind.layers)}"
        panel.put(Box(f"{path}.in", 0, 0, 44, SLIM, "input", "x", repeat=len(kind.layers)))
        put_block(panel, path, kind, stack, costs)
        panel.put(Box(f"{path}.out", 0, 0, 44, SLIM, "output", "x′", repeat=len(kind.layers)))
        panel.y += MARGIN
        times = f" × {len(kind.layers)}" if len(kind.layers) > 1 else ""
        pill = _pill(f"{LETTERS[index]}{times}", kind.layers, stack)
        _block_container(panel, path, kind, stack, 0, pill, f"layer{index % 6}")
        _, _, right, top = panel.layout.bounds
        if index and index % in_a_row == 0:
            x, y, row = left, y + row + 3 * GAP, 0.0
        dx = x - panel.layout.bounds[0]
        rail.layout.join(panel.layout, dx, y)
        # cells that wait for the encoder's output move with their panel
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
        box = Box(
            f"{stack.prefix}blocks.further",
            x + W / 2,
            y,
            2 * W,
            42,
            "layer",
            f"{len(rest)} further kinds of blocks",
            f"{layers} layers",
            layers,
            cost,
        )
        rail.layout.add(box)
        rail.right = max(rail.right, box.x + box.w)


def _block_container(
    rail: Rail, path: str, kind: Kind, stack: StackCost, bottom: float, pill: str, style: str = "fold"
) -> None:
    left = min(box.x for box in rail.layout.boxes) - MARGIN
    right, top = rail.right + MARGIN, rail.y + MARGIN
    block = kind.block
    extra = [
        f"{name} {getattr(block, name):g}"
        for name, usual in (("dropout", 0.0), ("residual_scale", 1.0))
        if getattr(block, name) != usual
    ]
    lines = (f"layers {label(kind.layers)}", *extra)
    container = Container(
        path, left, bottom, right - left, top - bottom, "block", pill, lines, len(kind.layers), field_of(kind, stack)
    )
    rail.layout.containers.insert(0, container)
    if pill:
        rail.layout.notes.append(Note(right - PAD, top, pill, "end", style))
    rail.right, rail.y = right, top


def _pill(text: str, layers: Sequence[int], stack: StackCost) -> str:
    # what the layers share, and what precedes their further passes
    blocks = [stack.stack.layers[layer] for layer in layers]
    added = any(block.reads_again is not None for block in blocks)
    words = {"reinject": added, "norm between": any(block.norm_between for block in blocks)}
    return " · ".join(filter(None, (text, _sharing(layers, stack), *(word for word, has in words.items() if has))))


def _sharing(layers: Sequence[int], stack: StackCost) -> str:
    # whose weights or keys the layers use, and which layers use theirs
    phrases = []
    for name, source_of in stack.sharing.items():
        pairs = [(layer, source_of[layer]) for layer in layers if layer in source_of]
        distances, read = {layer - source for layer, source in pairs}, sorted({source for _, source in pairs})
        if name == "weights" and pairs and len(layers) > 1:
            sets = len(layers) - len(pairs)
            phrases.append(f"{sets} sets of weights" if sets > 1 else "shared" if sets else "weights of others")
        elif len(read) == 1:
            phrases.append(f"{name} of layer {read[0]}")
        elif read:
            phrases.append(f"{name} of the layer before" if distances == {1} else f"{name} of layers {label(read)}")
        readers = [layer for layer, source in source_of.items() if source in layers and layer not in layers]
        if readers:
            phrases.append(f"{name} for layer{'s' * (len(readers) > 1)} {label(readers)}")
    return " · ".join(phrases)


def put_layers(rail: Rail, kinds: list[Kind], stack: StackCost, names: Sequence[str], most: int = MOST_ROWS) -> None:
    """Draw the layers on the stream, with repeated groups in a container. Above `most` rows, only list the kinds."""
    code = {layer: index for index, kind in enumerate(kinds) for layer in kind.layers}
    codes = [code[layer] for layer in range(len(code))]
    start = 0
    rail.y += MARGIN
    folded = fold(codes)
    if is_by_kind := sum(len(group) for _, group in folded) > most:
        folded = [(1, [(index, len(kind.layers)) for index, kind in enumerate(kinds)])]
    for times, group in folded:
        period = sum(repeats for _, repeats in group)
        bottom, wide = rail.y + GAP / 2, W
        rail.y += MARGIN if times > 1 else 0
        for index, repeats in group:
            # all layers that this row stands for, in every repetition
            row = [start + cycle * period + offset for cycle in range(times) for offset in range(repeats)]
            sharing = _sharing(kinds[index].layers if is_by_kind else row, stack)
            shape = " · ".join(filter(None, (f"× {repeats}" if repeats > 1 else "", sharing)))
            path, height = f"{stack.prefix}layers.{start}", H if sharing else SLIM
            box = Box(path, 0, 0, W, height, f"layer{index % 6}", names[index], shape, repeats * times)
            wide = max(wide, rail.put(box).w)
            start += repeats
        if times > 1:
            # the first repetition is counted already
            start += (times - 1) * period
            top = rail.y + MARGIN
            path = f"{stack.prefix}layers.to.{start}"
            container = Container(
                path, -wide / 2 - MARGIN, bottom, wide + 2 * MARGIN, top - bottom, "repeat", f"× {times}", (), times
            )
            rail.layout.containers.append(container)
            rail.layout.notes.append(Note(wide / 2 + MARGIN - 8, top, f"× {times}", "end", "fold"))
            rail.y = top
    rail.y += MARGIN / 2


def kind_name(block: Block) -> str:
    """Describe a block briefly: mamba · experts."""
    parts = [block.mixer, block.feedforward]
    return " · ".join(str(getattr(part, "kind", "")) for part in parts if not part.is_absent)


def put_end(rail: Rail, stack: StackCost, costs: ReportCosts) -> None:
    """Draw the part that all layers share, and the final norm."""
    if stack.stack.relative_bias is not None:
        _put_position_bias(rail, stack, costs)
    put_residual_end(rail, stack, costs, "residual_exit")
    if stack.stack.early_exit is not None:
        path = f"{stack.prefix}exit_gate"
        rail.put(Box(path, 0, 0, W, SLIM, "operation", "early exit of a loop", "", 1, costs.take(path),
                     field=f"{stack.prefix}early_exit"))  # fmt: skip
    norm, path = stack.stack.final_norm, f"{stack.prefix}final_norm"
    if not norm.is_absent:
        rail.put(Box(path, 0, 0, W, SLIM, "norm", title(norm), costs.text(stack.d), 1, costs.take(path), field=path))


def put_residual_end(rail: Rail, stack: StackCost, costs: ReportCosts, name: str) -> None:
    """Draw the weights by which the residual streams begin or end, if there are any."""
    if name in stack.residual_ends:
        path = f"{stack.prefix}{name}"
        rail.put(Box(path, 0, 0, W, SLIM, "operation", title(stack.stack.residual), "", 1, costs.take(path),
                     field=f"{stack.prefix}residual"))  # fmt: skip


def _put_position_bias(rail: Rail, stack: StackCost, costs: ReportCosts) -> None:
    # right of the first mixer if there is room, else left of the stream
    assert stack.stack.relative_bias is not None
    path, containers = f"{stack.prefix}position_bias", rail.layout.containers
    table, width = stack.parameters()[path], stack.stack.relative_bias[1]  # one number per bucket and head
    letter = costs.of_layers(stack, stack.groups[0].layers).in_letters("mixer", "", "(H)").strip("()")
    if stack.d.symbols <= table.symbols:  # a vector per bucket
        width, letter = stack.d.value, costs.text(stack.d)
    shape = f"{table.value // width:,} × {letter}"
    box = Box(path, 0, 0, W, H, "position", "position bias", shape, 1, costs.take(path), field=f"{stack.prefix}layers")
    if rail.legible is not None:  # sublayers are drawn elsewhere
        box = rail.sized(box)
        right = max(other.x + other.w for other in rail.layout.boxes)
        rail.layout.add(replace(box, x=right + 3 * MARGIN, y=rail.y - H))
        return
    mixer = next(box for box in containers if box.kind == "mixer" and box.id.startswith(stack.prefix))
    right, middle = mixer.x + mixer.w, mixer.y + mixer.h / 2
    is_elsewhere = sum(container.kind == "block" for container in containers) > 1
    is_taken = any(container.x >= right for container in containers)  # parallel sublayers
    if is_elsewhere or is_taken:
        rail.layout.add(replace(box, x=-TIE - 40 - W, y=rail.y - H))
        return
    box = rail.layout.add(replace(box, x=right + 44, y=middle - H / 2))
    rail.layout.wire(box, mixer.as_box(), "branch", [(box.x, box.y + H / 2), (right, box.y + H / 2)])


def fold(codes: Sequence[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Fold a sequence into repeated groups: (number of times, [(code, number of times in a row), ...])."""
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
