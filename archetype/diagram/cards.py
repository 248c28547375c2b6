"""A model for a slide: its layers by numbers, and each distinct content of its blocks once, on a card."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archetype.diagram.block import Kind, branches_of, captions, field_of, put_branches
from archetype.diagram.content import GAP, LINE, SLIM, TITLE
from archetype.diagram.costs import LayerCosts, ReportCosts
from archetype.diagram.rail import SUM, Rail
from archetype.diagram.scene import Box, Container, Layout, Measure, Note
from archetype.diagram.stack import MARGIN, MOST_PANELS, kinds_of, put_layers
from archetype.diagram.text import NOTE, text_width
from archetype.models.block.diagram import contents
from archetype.models.stack.cost import StackCost, label

MOST_ROWS = 8  # of a stack on a slide; one that folds into no fewer is shown by its kinds of blocks
CAPTION = 300.0  # least width of the text below a card


@dataclass
class _User:
    """Layers of a stack that have a branch."""

    rail: Rail
    stack: StackCost
    kinds: list[Kind]

    @property
    def kind(self) -> Kind:
        """All of them as one."""
        return Kind(self.kinds[0].block, tuple(sorted(layer for kind in self.kinds for layer in kind.layers)))


class Cards:
    """The distinct branches of all blocks, numbered from 1.

    Args:
        measure: whose numbers boxes show.

    Attributes:
        is_complete: whether each layer is drawn: no stack has more kinds of blocks than a picture shows.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure, self.is_complete = measure, True
        self.branches: dict[str, tuple[tuple[str, ...], list[_User]]] = {}

    def put_outline(self, rail: Rail, stack: StackCost, costs: ReportCosts) -> None:
        """Put the layers of a stack on a rail, each with the numbers of its branches."""
        kinds = kinds_of(stack)
        self.is_complete = self.is_complete and len(kinds) <= MOST_PANELS
        names = [" → ".join(str(self._number(branch, kind, rail, stack)) for branch in branches_of(kind, stack, costs))
                 for kind in kinds]  # fmt: skip
        start, before = rail.y + GAP / 2, len(rail.layout.boxes)
        put_layers(rail, kinds, stack, names, MOST_ROWS)
        side = max(box.w for box in rail.layout.boxes[before:]) / 2 + 2 * MARGIN
        frame = Container(f"{stack.prefix}layers", -side, start, 2 * side, rail.y - start, "block", "layers", (), 1,
                          f"{stack.prefix}layers")  # fmt: skip
        rail.layout.containers.insert(0, frame)

    def _number(self, branch: tuple[str, ...], kind: Kind, rail: Rail, stack: StackCost) -> int:
        """The number of a branch; equal ones, of whatever layers, have the same."""
        parts = [part.dump() for name, (part, _) in contents(kind.block).items() if name in branch]
        key = repr((branch, parts, kind.block.wiring.dump(), stack.d, stack.stack.residual.dump()))
        users = self.branches.setdefault(key, (branch, []))[1]
        if not users or users[-1].stack is not stack:
            users.append(_User(rail, stack, []))
        users[-1].kinds.append(kind)
        return list(self.branches).index(key) + 1

    def drawn(self, costs: ReportCosts) -> list[Layout]:
        """Each branch with its caption; the lower left corner is at the origin."""
        return [_card(number, *branch, costs) for number, branch in enumerate(self.branches.values(), 1)]


def _card(number: int, branch: tuple[str, ...], users: Sequence[_User], costs: ReportCosts) -> Layout:
    """Draw one branch with the stretch of the residual stream that it leaves and joins."""
    first, stack, kind = users[0], users[0].stack, users[0].kind
    others = [costs.of_layers(user.stack, user.kind.layers) for user in users[1:]]
    layer_costs = LayerCosts(costs, stack, kind.layers, others)
    inner = Rail(first.rail.letters, first.rail.legible)
    inner.branches = SUM / 2 + GAP
    place = f"{stack.prefix}blocks.{'*' if 1 < len(stack.stack.layers) == len(kind.layers) else label(kind.layers)}"
    put_branches(inner, place, kind, stack, layer_costs, branch)
    parts = [one for one in inner.layout.containers if one.kind in ("mixer", "cross", "feedforward")]
    _put_source(inner, place)
    left, bottom, right, top = inner.layout.bounds
    frame = Container(f"{place}.{'.'.join(branch)}.card", left - GAP / 2, bottom - GAP, right - left + GAP,
                      top - bottom + 2 * GAP, "block", str(number), (), layer_costs.count,
                      field_of(kind, stack))  # fmt: skip
    inner.layout.containers.insert(0, frame)
    _put_ends(inner, frame)
    title = f"{number}  {' ∥ '.join(one.label for one in parts)}"
    lines = list(_wrapped(title, "; ".join(_facts(branch, [layer_costs, *others])), max(frame.w, CAPTION)))
    card, height = Layout(), LINE * len(lines) + 6
    card.join(inner.layout, -frame.x, height - frame.y)
    start = text_width(f"{title}  ", TITLE, bold=True)
    card.notes.append(Note(0, height - 6 - LINE / 2, title, "start", "title"))
    card.notes += [Note(start if row == 0 else 0.0, height - 6 - LINE * (row + 0.5), line)
                   for row, line in enumerate(lines) if line]  # fmt: skip
    return card


def _facts(branch: tuple[str, ...], users: Sequence[LayerCosts]) -> Iterator[str]:
    """What is said of the contents of a branch; what does not hold of all stacks with the name of the stack."""
    said = {user.stack.prefix.rstrip("."): [line for name in branch
            for line in captions(name, contents(user.block.block)[name][0], user)] for user in users}  # fmt: skip
    for line in dict.fromkeys(line for lines in said.values() for line in lines):
        stacks = [name for name, lines in said.items() if line in lines]
        yield line if len(stacks) == len(said) else f"{' and '.join(stacks)}: {line}"


def _put_source(rail: Rail, place: str) -> None:
    """Wires to the keys and values of cross-attention from what they read."""
    for boxes, bus in rail.waiting:
        middle, y = (boxes[0].middle + boxes[-1].middle) / 2, bus - 10 - GAP - SLIM
        pill = rail.sized(Box(f"{place}.source", middle - 60, y, 120, SLIM, "input", "encoder output"))
        rail.layout.add(pill)
        for box in boxes:
            points = [(pill.middle, y + SLIM), (pill.middle, bus), (box.middle, bus), (box.middle, box.y)]
            rail.layout.wire(pill, box, "source", points)


def _put_ends(rail: Rail, frame: Container) -> None:
    """Wires of the stream from the edge of a card to the first element on it, and from the last to the edge."""
    on_rail = [box for box in rail.layout.boxes if box.x < 0 < box.x + box.w]
    first, last = min(on_rail, key=lambda box: box.y), max(on_rail, key=lambda box: box.y)
    rail.layout.wire(frame.as_box(), first, "stream", [(0.0, frame.y), (0.0, first.y)])
    rail.layout.wire(last, frame.as_box(), "stream", [(0.0, last.y + last.h), (0.0, frame.y + frame.h)])


def _wrapped(title: str, text: str, width: float) -> Iterator[str]:
    """A text as lines, the first of which begins behind a title."""
    line, room = "", width - text_width(f"{title}  ", TITLE, bold=True)
    for word in text.split():
        longer = f"{line} {word}".strip()
        if text_width(longer, NOTE) > room:
            yield line
            longer, room = word, width
        line = longer
    yield line
