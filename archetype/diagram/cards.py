"""A model for a slide: its layers by numbers, and each distinct content of its blocks once, on a card."""

from collections.abc import Iterator

from archetype.diagram.block import Kind, branches_of, field_of, put_branches
from archetype.diagram.content import GAP, LINE, PAD, SLIM, TITLE
from archetype.diagram.costs import ReportCosts
from archetype.diagram.rail import SUM, Rail
from archetype.diagram.scene import Box, Container, Layout, Measure, Note
from archetype.diagram.stack import MARGIN, MOST_PANELS, kinds_of, put_layers
from archetype.diagram.text import NOTE, text_width
from archetype.models.stack.cost import StackCost, label

MOST_ROWS = 8  # of a stack on a slide; one that folds into no fewer is shown by its kinds of blocks
CAPTIONS = 300.0  # least width of the text below a card


class Cards:
    """The distinct branches of all blocks, numbered from 1.

    Args:
        measure: whose numbers boxes show.

    Attributes:
        cards: each with its drawing and its caption below it; its lower left corner is at the origin.
        is_complete: whether each layer is drawn: no stack has more kinds of blocks than a picture shows.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure, self.is_complete = measure, True
        self.cards: list[Layout] = []

    def put_outline(self, rail: Rail, stack: StackCost, costs: ReportCosts) -> None:
        """Put the layers of a stack on a rail, each with the numbers of its branches, which become cards."""
        kinds = kinds_of(stack)
        self.is_complete = self.is_complete and len(kinds) <= MOST_PANELS
        drawn: dict[str, tuple[int, tuple[str, ...], list[Kind]]] = {}
        names = []
        for kind in kinds:
            numbers = []
            for branch in branches_of(kind, stack, costs):
                key = repr((branch, [kind.block.dump().get(_FIELDS.get(name, name)) for name in branch],
                            kind.block.wiring.dump()))  # fmt: skip
                number, _, users = drawn.setdefault(key, (len(self.cards) + len(drawn) + 1, branch, []))
                users.append(kind)
                numbers.append(str(number))
            names.append(" → ".join(numbers))
        start, before = rail.y + GAP / 2, len(rail.layout.boxes)
        put_layers(rail, kinds, stack, names, MOST_ROWS)
        side = max(box.w for box in rail.layout.boxes[before:]) / 2 + 2 * MARGIN
        rail.layout.containers.insert(0, Container(
            f"{stack.prefix}layers", -side, start, 2 * side, rail.y - start, "block", "layers", (), 1,
            f"{stack.prefix}layers"
        ))  # fmt: skip
        for number, branch, users in drawn.values():
            layers = tuple(sorted(layer for kind in users for layer in kind.layers))
            self.cards.append(_card(number, branch, Kind(users[0].block, layers), rail, stack, costs))


_FIELDS = {"cross": "cross_attention"}  # of a block, by the name of its content


def _card(
    number: int, branch: tuple[str, ...], kind: Kind, rail: Rail, stack: StackCost, costs: ReportCosts
) -> Layout:
    """Draw one branch with the stretch of the residual stream that it leaves and joins."""
    inner, layers = Rail(rail.letters, rail.legible), kind.layers
    inner.branches = SUM / 2 + GAP
    place = f"{stack.prefix}blocks.{'*' if 1 < len(stack.stack.layers) == len(layers) else label(layers)}"
    put_branches(inner, place, kind, stack, costs, branch)
    contents = [one for one in inner.layout.containers if one.kind in ("mixer", "cross", "feedforward")]
    sources = [box for boxes, _ in inner.waiting for box in boxes]
    if sources:  # cross-attention: its keys and values come from outside
        middle = (sources[0].middle + sources[-1].middle) / 2
        y = contents[0].y - GAP - SLIM
        pill = inner.sized(Box(f"{place}.source", middle - 60, y, 120, SLIM, "input", "encoder output"))
        pill = inner.layout.add(pill)
        for boxes, bus in inner.waiting:
            for box in boxes:
                points = [(pill.middle, y + SLIM), (pill.middle, bus), (box.middle, bus), (box.middle, box.y)]
                inner.layout.wire(pill, box, "source", points)
    left, bottom, right, top = inner.layout.bounds
    frame = Container(f"{place}.{'.'.join(branch)}.card", left - GAP / 2, bottom - GAP, right - left + GAP,
                      top - bottom + 2 * GAP, "block", str(number), (), len(layers), field_of(kind, stack))  # fmt: skip
    inner.layout.containers.insert(0, frame)
    _stubs(inner, frame)
    card = Layout()
    title = f"{number}  {' ∥ '.join(one.label for one in contents)}"
    lines = list(_caption(title, [line for one in contents for line in one.lines], max(frame.w, CAPTIONS)))
    height = LINE * len(lines) + 6
    card.join(inner.layout, -frame.x, height - frame.y)
    start = text_width(f"{title}  ", TITLE, bold=True)
    card.notes.append(Note(0, height - 6 - LINE / 2, title, "start", "title"))
    card.notes += [Note(start if row == 0 else 0.0, height - 6 - LINE * (row + 0.5), line)
                   for row, line in enumerate(lines) if line]  # fmt: skip
    return card


def _stubs(rail: Rail, frame: Container) -> None:
    """Wires of the stream from the edge of a card to the first element on it, and from the last to the edge."""
    on_rail = [box for box in rail.layout.boxes if box.x < 0 < box.x + box.w]
    first, last, x = min(on_rail, key=lambda box: box.y), max(on_rail, key=lambda box: box.y), 0.0
    rail.layout.wire(frame.as_box(), first, "stream", [(x, frame.y), (x, first.y)])
    rail.layout.wire(last, frame.as_box(), "stream", [(x, last.y + last.h), (x, frame.y + frame.h)])


def _caption(title: str, facts: list[str], width: float) -> Iterator[str]:
    """The facts as lines, the first of which begins behind the title."""
    line, room = "", width - text_width(f"{title}  ", TITLE, bold=True)
    for word in "; ".join(facts).split():
        longer = f"{line} {word}".strip()
        if text_width(longer, NOTE) > room:
            yield line
            longer, room = word, width
        line = longer
    yield line


def in_columns(cards: list[Layout], limit: float) -> tuple[list[list[Layout]], float, float]:
    """Stack cards in columns of at most a height; return the columns, their width and their height."""
    columns: list[list[Layout]] = []
    room = 0.0
    for card in cards:
        height = extent(card)[1]
        if not columns or height > room:
            columns.append([])
            room = limit
        columns[-1].append(card)
        room -= height + 2 * GAP
    width = sum(max(extent(card)[0] for card in column) + PAD for column in columns)
    height = max(sum(extent(card)[1] + 2 * GAP for card in column) - 2 * GAP for column in columns)
    return columns, width, height


def extent(card: Layout) -> tuple[float, float]:
    """The width and the height of a card with its caption."""
    lines = [note for note in card.notes if note.style in ("title", "quiet")]
    right = max(note.x + text_width(note.text, TITLE if note.style == "title" else NOTE, note.style == "title")
                for note in lines)  # fmt: skip
    return max(right, card.bounds[2]), card.bounds[3]
