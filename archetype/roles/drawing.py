"""How each role is drawn: what the `diagram.py` of a part or of a kind of model gives, as names of boxes and wires.

A function is registered for its kinds by the decorator of their role. Where it stands in a picture, and what it costs,
is not its concern: a box shows the cost of the module that has its name.

| role                | decorator    | is given                               | gives     |
|---------------------|--------------|----------------------------------------|-----------|
| mixer, feed-forward | `inside_of`  | the part, modules that its cost counts | `Inside`  |
| key selection       | `inside_of`  | the part, modules that its cost counts | `Inside`  |
| wiring              | `branch_of`  | the wiring                             | `Branch`  |
| head                | `steps_of`   | the head, its width, its tied table    | `Step`s   |
| token embedding     | `steps_of`   | its cost, `text` of formulas, a prefix | `Step`s   |
| model               | `streams_of` | the model, its cost, `text` of formulas | `Streams` |

A kind without one is drawn by the modules that its cost counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from archetype.spec.base import Spec
from archetype.spec.kinds import Part
from archetype.spec.registry import provided, provides

X, SOURCE = "x", "source"  # inputs of a content: the vectors it reads, and an encoder's output
QUERIES = "queries"  # input of a key selection: the vectors from which its attention makes queries


class Cell(NamedTuple):
    """A box of a content, on a grid of columns and rows; the first row is the lowest.

    Attributes:
        name: ends its id; also the module whose cost it shows, unless `rows` names others.
        column: of its left edge, in columns.
        row: in which it stands.
        inputs: names of the cells that it reads, or `x`, or `source`; `in_proj@2` leaves that cell above column 2.
        span: its width, in columns.
        label: its text (absent: its name).
        rows: modules whose cost it shows (absent: that of its name).
        kind: its role (absent: the content's).
        shape: of what it gives, where it has no weights.
        slim: whether it is one line high.
        lanes: wires that leave it side by side.
        gives: activation of the content that holds its result (absent: the output of the module of its name).
    """

    name: str
    column: float
    row: int
    inputs: tuple[str, ...] = ()
    span: float = 1
    label: str = ""
    rows: tuple[str, ...] = ()
    kind: str = ""
    shape: str = ""
    slim: bool = False
    lanes: int = 1
    gives: str = ""


class Group(NamedTuple):
    """Cells that belong together, such as those of an expert."""

    label: str
    cells: tuple[str, ...]
    repeat: int = 1


class Inside(NamedTuple):
    """The cells of a content.

    Attributes:
        cells: in any order.
        output: the one whose result is the content's; empty where the way through the cells is not known.
        groups: cells in a container of their own.
        loops: a cell, and the one that reads its result at the next token.
    """

    cells: tuple[Cell, ...]
    output: str = ""
    groups: tuple[Group, ...] = ()
    loops: tuple[tuple[str, str], ...] = ()


class Branch(NamedTuple):
    """How each content leaves and joins the residual stream; norms by the ending of their module's name.

    Attributes:
        before: the norm of a content's input (absent: none).
        after: the norm of its output, before it is added (absent: none).
        behind: the norm of the sum (absent: none).
        residual: whether the stream goes on beside the content.
        parallel: whether mixer and feed-forward part read the same vectors.
        shared_norm: whether one norm serves both of them.
    """

    before: str = ""
    after: str = ""
    behind: str = ""
    residual: bool = True
    parallel: bool = False
    shared_norm: bool = False


class Step(NamedTuple):
    """A box on a model's stream, or one beside it whose result joins it.

    Attributes:
        name: its id, and the module whose cost it shows.
        label: its text.
        shape: of its weights, or of what it gives, in the letters of shapes.
        kind: its role, as boxes have it: embedding, norm, position, head, operation, input, output, add.
        field: the part of the specification that it draws.
        slim: whether it is one line high.
        joins: name of the sum that adds it to the stream (absent: it stands on the stream itself).
        is_before: whether it comes before the stream's vectors, and is not added to them.
        tied: name of the box whose table it shares (absent: none).
        detail: what a reader may want to know beside it.
        gives: activation of the model that holds its result (absent: the output of the module of its name).
    """

    name: str
    label: str
    shape: str = ""
    kind: str = "embedding"
    field: str = ""
    slim: bool = False
    joins: str = ""
    is_before: bool = False
    tied: str = ""
    detail: str = ""
    gives: str = ""


class Blocks(NamedTuple):
    """The blocks of a stack and the norm at their end.

    Attributes:
        prefix: of the stack: "", "encoder.", ...
    """

    prefix: str = ""


Item = Step | Blocks | str  # on a stream; text is the shape of its vectors, and is written beside it


class Stream(NamedTuple):
    """What vectors pass on their way through a model or one of its sides, from input to output.

    Attributes:
        items: from input to output.
        letters: of rows and positions, where this stream has others than B, T and S.
        is_residual: whether what passes it is a sum to which contents add.
    """

    items: tuple[Item, ...]
    letters: Mapping[str, str] = {}
    is_residual: bool = True


class Link(NamedTuple):
    """What one stream gives another.

    Attributes:
        kind: `tied`, where both ends are boxes of one table; `sum`, where a box's vectors are added at another;
            `cross`, where the cross-attentions of a stack read a box's vectors; `state`, where the layers of a stack
            begin with the last state of those of another.
        source: name of the box, or prefix of the stack, that it leaves.
        target: name of the box, or prefix of the stack, that it enters.
    """

    kind: Literal["tied", "sum", "cross", "state"]
    source: str
    target: str


class Streams(NamedTuple):
    """A whole model: its streams from left to right, and what they give each other."""

    streams: tuple[Stream, ...]
    links: tuple[Link, ...] = ()


DrawInside = Callable[[Any, frozenset[str]], Inside]
I = TypeVar("I", bound=DrawInside)  # noqa: E741
B = TypeVar("B", bound=Callable[[Any], Branch])
H = TypeVar("H", bound=Callable[[Any, Any, Any], tuple[Step, ...]])
M = TypeVar("M", bound=Callable[[Any, Any, Any], Streams])


def inside_of(*parts: type[Spec]) -> Callable[[I], I]:
    """Function decorator: draw these mixers or feed-forward parts, and classes derived from them, by this function.

    It takes the part and the names of the modules that its cost counts, and gives an `Inside`.
    """
    return provides("diagram", *parts)


def selection_inside(selection: Part, modules: frozenset[str], queries: str, column: float, row: int = 0) -> Inside:
    """Return the cells of a key selection inside its attention, in a container of their own.

    Args:
        selection: the specification.
        modules: that the cost of the attention counts; the selection's begin with `index.`.
        queries: the cell or input from which the attention makes its queries.
        column: in which its cells begin.
        row: of the lowest of them, above that of `queries`.
    """
    own = frozenset(name.removeprefix("index.") for name in modules if name.startswith("index."))
    function = provided("diagram", type(selection))
    drawn = function(selection, own) if function else Inside((Cell("keys", 0, 0, (X,), rows=tuple(own)),), "keys")
    names = {cell.name: f"index.{cell.name}" for cell in drawn.cells} | {QUERIES: queries}
    cells = tuple(
        cell._replace(
            name=names[cell.name],
            column=cell.column + column,
            row=cell.row + row,
            inputs=tuple(names.get(name, name) for name in cell.inputs),
            label=cell.label or cell.name,
            rows=tuple(f"index.{row}" for row in cell.rows or (cell.name,)),
        )
        for cell in drawn.cells
    )
    return Inside(cells, names.get(drawn.output, ""), (Group(title(selection), tuple(cell.name for cell in cells)),))


def branch_of(*wirings: type[Part]) -> Callable[[B], B]:
    """Function decorator: blocks with these wirings are drawn by this function."""
    return provides("diagram", *wirings)


def steps_of(*parts: type[Spec]) -> Callable[[H], H]:
    """Function decorator: these heads or token embeddings are drawn by this function."""
    return provides("diagram", *parts)


def streams_of(*models: type[Part]) -> Callable[[M], M]:
    """Function decorator: these kinds of models are drawn by this function."""
    return provides("diagram", *models)


def inside(part: Spec, modules: Iterable[str], function: DrawInside | None = None) -> Inside:
    """The cells of a part; modules that its function says nothing of stand in rows above the others.

    Args:
        part: the specification.
        modules: that its cost counts.
        function: what draws it (absent: what is registered for it).
    """
    names = list(modules)
    function = function or provided("diagram", type(part))
    if function is None and names:
        return _unknown(part, names)
    drawn = function(part, frozenset(names)) if function else Inside(())
    shown = {row for cell in drawn.cells for row in cell.rows or (cell.name,)}
    above = max((cell.row for cell in drawn.cells), default=-1) + 1
    rest = [name for name in names if name not in shown]
    cells = tuple(Cell(name, index % 3, above + index // 3) for index, name in enumerate(rest))
    return drawn._replace(cells=(*drawn.cells, *cells))


def with_equals_once(drawing: Inside) -> Inside:
    """Return a drawing in which a group whose cells are as those of the first is one box, which names the first."""
    cells = {cell.name: cell for cell in drawing.cells}
    for group in drawing.groups[1:]:
        first, own = ([cells[name] for name in one.cells] for one in (drawing.groups[0], group))
        if [(c.label, c.kind, c.row) for c in first] != [(c.label, c.kind, c.row) for c in own]:
            continue
        left, end = min(c.column for c in own), max(c.column + c.span for c in own)
        outer = tuple(dict.fromkeys(name for c in own for name in c.inputs if name not in group.cells))
        rows = tuple(row for c in own for row in c.rows or (c.name,))
        last = own[-1]._replace(column=left, row=min(c.row for c in own), inputs=outer, span=1, label=group.label,
                                rows=rows)  # fmt: skip
        rest = [last if c.name == last.name else c for c in drawing.cells if c.name not in group.cells or c is own[-1]]
        removed = end - left - 1
        moved = [c._replace(column=c.column - removed) if c.column >= end else
                 c._replace(span=c.span - removed) if c.column + c.span >= end and c is not last else c
                 for c in rest]  # fmt: skip
        drawing = drawing._replace(cells=tuple(moved), groups=tuple(one for one in drawing.groups if one is not group))
    return drawing


def _unknown(part: Spec, names: Sequence[str]) -> Inside:
    """One box, with the fields, of a part of which nothing says how it is drawn."""
    fields = ", ".join(f"{name} {value}" for name, value in part.dump().items() if name != "kind")
    label = title(part) if isinstance(part, Part) else type(part).__name__
    return Inside((Cell(names[0], 0, 0, (X,), 3, label, tuple(names), shape=fields),), names[0])


def title(part: Part) -> str:
    """The name of a kind as readers know it; where it says none, its `kind` in words."""
    kind = str(getattr(part, "kind", type(part).__name__))
    own = vars(type(part)).get("title", "")  # a derived kind is not called as the one that it is derived from
    return own or kind.replace("_", " ").capitalize()


def pill(name: str, label: str, shape: str, kind: str = "input", gives: str = "") -> Step:
    """The label of a stream's input or output."""
    return Step(name, label, shape, kind, slim=True, gives=gives)
