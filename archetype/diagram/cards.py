"""Drawing of a model for a slide: layers labelled with numbers, and one card for each distinct sublayer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from archetype.diagram.block import Kind, branches_of, captions, field_of, is_scaled, put_branches
from archetype.diagram.costs import LayerCosts, ReportCosts
from archetype.diagram.rail import SUM, Rail
from archetype.diagram.scene import Box, Container, Layout, Measure, Note
from archetype.diagram.stack import MARGIN, MOST_PANELS, kinds_of, put_layers
from archetype.diagram.sublayer import GAP, LINE, SLIM, TITLE
from archetype.diagram.text import NOTE, text_width
from archetype.models.block.diagram import contents
from archetype.models.stack.cost import StackCost, label
from archetype.roles.drawing import inside, title

MOST_ROWS = 8  # a stack that folds into more rows is shown by its kinds of blocks
CAPTION = 220.0  # smallest width of a card's caption


@dataclass
class _User:
    # layers of a stack that use a branch, in one variant
    stack: StackCost
    costs: LayerCosts
    kinds: list[Kind]
    facts: list[str]


class Cards:
    """Distinct branches of all blocks, numbered from 1. Variants that look the same share a card, as 1a and 1b.

    Attributes:
        measure: measure shown in boxes.
        is_complete: whether every layer is drawn, because no stack has more kinds of blocks than fit.
    """

    def __init__(self, measure: Measure, costs: ReportCosts) -> None:
        self.measure, self.costs = measure, costs
        self.branches: dict[str, tuple[tuple[str, ...], list[_User]]] = {}
        self.letters: dict[str, Mapping[str, str]] = {}
        self.kinds = {prefix: kinds_of(stack) for prefix, stack in costs.stacks.items()}
        self.is_complete = all(len(kinds) <= MOST_PANELS for kinds in self.kinds.values())
        for prefix, kinds in self.kinds.items():
            for kind in kinds:
                for branch in branches_of(kind, costs.stacks[prefix], costs):
                    self._add(branch, kind, costs.stacks[prefix])

    def put_outline(self, rail: Rail, stack: StackCost) -> None:
        """Draw the layers of a stack on a residual stream, labelled with the card numbers of their branches."""
        kinds = self.kinds[stack.prefix]
        self.letters[stack.prefix] = rail.letters
        names = [" → ".join(self._names_of(kind, stack)) for kind in kinds]
        start, before = rail.y + GAP / 2, len(rail.layout.boxes)
        put_layers(rail, kinds, stack, names, MOST_ROWS)
        # the boxes put since `before`
        side = max(box.w for box in rail.layout.boxes[before:]) / 2 + 2 * MARGIN
        frame = Container(
            f"{stack.prefix}layers",
            -side,
            start,
            2 * side,
            rail.y - start,
            "block",
            "layers",
            (),
            1,
            f"{stack.prefix}layers",
        )
        rail.layout.containers.insert(0, frame)

    def _names_of(self, kind: Kind, stack: StackCost) -> Iterator[str]:
        for branch in branches_of(kind, stack, self.costs):
            for index, (names, users) in enumerate(self.branches.values(), 1):
                for user, name in zip(users, _names(index, users), strict=True):
                    if names == branch and user.stack is stack and kind in user.kinds:
                        yield name

    def _add(self, branch: tuple[str, ...], kind: Kind, stack: StackCost) -> None:
        # everything that a card shows is part of its key
        costs = self.costs.of_layers(stack, kind.layers)
        parts = {name: part for name, part in contents(kind.block).items() if name in branch}
        facts = [line for name, (part, _) in parts.items() for line in captions(name, part, costs)]
        drawings = [
            (title(part), inside(part, costs.modules(name), function)) for name, (part, function) in parts.items()
        ]
        sizes = [
            (module, self.costs.text(formula))
            for module, formula in costs.block.parameters().items()
            if module.startswith(branch)
        ]
        key = repr(
            (
                branch,
                drawings,
                sizes,
                kind.block.wiring.dump(),
                is_scaled(kind.block, branch),
                stack.d,
                stack.stack.residual.dump(),
                facts if self.measure == "flops" else [],
            )
        )
        users = self.branches.setdefault(key, (branch, []))[1]
        same = next((user for user in users if user.stack is stack and user.facts == facts), None)
        if same is None:
            users.append(_User(stack, costs, [kind], facts))
        else:
            same.kinds.append(kind)

    def drawn(self) -> list[Layout]:
        """Draw each branch with its caption. The origin is the lower left corner of a card."""
        return [self._card(index, *branch) for index, branch in enumerate(self.branches.values(), 1)]

    def _card(self, index: int, branch: tuple[str, ...], users: Sequence[_User]) -> Layout:
        # a branch with the part of the residual stream that it leaves and joins
        layers: dict[str, list[int]] = {}
        for user in users:
            layers.setdefault(user.stack.prefix, []).extend(layer for kind in user.kinds for layer in kind.layers)
        joint: list[LayerCosts] = []
        # the first stack comes last, and takes the other stacks' layers with it
        for prefix, indices in reversed(layers.items()):
            joint.append(LayerCosts(self.costs, self.costs.stacks[prefix], tuple(sorted(indices)), joint[-1:]))
        costs, stack = joint[-1], users[0].stack
        kind = Kind(users[0].kinds[0].block, costs.layers)
        inner = Rail(self.letters.get(stack.prefix), self.measure, counts=costs.count)
        inner.branches = SUM / 2 + GAP
        path = f"{stack.prefix}blocks.{'*' if 1 < len(stack.stack.layers) == len(kind.layers) else label(kind.layers)}"
        put_branches(inner, path, kind, stack, costs, branch)
        parts = [box for box in inner.layout.containers if box.kind in ("mixer", "cross", "feedforward")]
        _put_source(inner, path)
        left, bottom, right, top = inner.layout.bounds
        frame = Container(
            f"{path}.{'.'.join(branch)}.card",
            left - GAP / 2,
            bottom - GAP,
            right - left + GAP,
            top - bottom + 2 * GAP,
            "block",
            str(index),
            (),
            costs.count,
            field_of(kind, stack),
        )
        inner.layout.containers.insert(0, frame)
        _put_ends(inner, frame)
        if costs.count > 1:
            edge = frame.y + frame.h
            inner.layout.notes.append(Note(frame.x + frame.w - GAP, edge, f"× {costs.count}", "end", "fold"))
        heading = f"{index}  {' ∥ '.join(box.label for box in parts)}"
        lines = list(_wrapped(heading, "; ".join(_facts(index, users)), max(frame.w, CAPTION)))
        card, height = Layout(), LINE * len(lines) + 6
        card.join(inner.layout, -frame.x, height - frame.y)
        start = text_width(f"{heading}  ", TITLE, bold=True)
        card.notes.append(Note(0, height - 6 - LINE / 2, heading, "start", "title"))
        card.notes += [
            Note(start if row == 0 else 0.0, height - 6 - LINE * (row + 0.5), line)
            for row, line in enumerate(lines)
            if line
        ]
        return card


def _names(index: int, users: Sequence[_User]) -> list[str]:
    # 1, or 1a and 1b if a branch has variants within a stack
    variants = list(dict.fromkeys(tuple(user.facts) for user in users))
    if len(users) == len({id(user.stack) for user in users}):  # one variant per stack
        return [str(index)] * len(users)
    return [f"{index}{ascii_lowercase[variants.index(tuple(user.facts))]}" for user in users]


def _facts(index: int, users: Sequence[_User]) -> Iterator[str]:
    # captions shared by all users come first, then the others by number or stack
    shared = [line for line in users[0].facts if all(line in user.facts for user in users)]
    yield from shared
    by_owner: dict[str, str] = {}
    for name, user in zip(_names(index, users), users, strict=True):
        rest = ", ".join(line for line in user.facts if line not in shared)
        owner = name if name != str(index) else user.stack.prefix.rstrip(".")
        by_owner |= {owner: f"{owner}: {rest}"} if rest else {}
    yield from by_owner.values()


def _put_source(rail: Rail, path: str) -> None:
    # on a card, the encoder's output is a pill below the cells that read it
    for boxes, bus in rail.waiting:
        middle, y = (boxes[0].middle + boxes[-1].middle) / 2, bus - 10 - GAP - SLIM
        pill = rail.sized(Box(f"{path}.source", middle - 60, y, 120, SLIM, "input", "encoder output"))
        rail.layout.add(pill)
        for box in boxes:
            points = [(pill.middle, y + SLIM), (pill.middle, bus), (box.middle, bus), (box.middle, box.y)]
            rail.layout.wire(pill, box, "source", points)


def _put_ends(rail: Rail, frame: Container) -> None:
    # the residual stream enters and leaves through the card's edges; boxes on the stream surround x = 0
    on_rail = [box for box in rail.layout.boxes if box.x < 0 < box.x + box.w]
    first, last = min(on_rail, key=lambda box: box.y), max(on_rail, key=lambda box: box.y)
    rail.layout.wire(frame.as_box(), first, "stream", [(0.0, frame.y), (0.0, first.y)])
    rail.layout.wire(last, frame.as_box(), "stream", [(0.0, last.y + last.h), (0.0, frame.y + frame.h)])


def _wrapped(title: str, text: str, width: float) -> Iterator[str]:
    # the first line begins after the title
    line, room = "", width - text_width(f"{title}  ", TITLE, bold=True)
    for word in text.split():
        longer = f"{line} {word}".strip()
        if text_width(longer, NOTE) > room:
            yield line
            longer, room = word, width
        line = longer
    yield line
