"""Drawings of parts: the `diagram.py` of a part or kind of model returns boxes and wires by name.

`provides("diagram", ...)` registers a function for kinds of a role. The function knows neither where the part is in the
picture nor what the part costs: a box shows the cost of the module with the same name.

| role                                | arguments                               | returns   |
|-------------------------------------|-----------------------------------------|-----------|
| mixer, feed-forward (`inside_of`)   | the part, modules that its cost counts  | `Inside`  |
| key selection (`inside_of`)         | the part, modules that its cost counts  | `Inside`  |
| wiring                              | the wiring                              | `Branch`  |
| head                                | the head, its width, its tied table     | `Step`s   |
| token embedding                     | its cost, `text` of formulas, a prefix  | `Step`s   |
| model                               | the model, its cost, `text` of formulas | `Streams` |

A kind without a function is drawn as the modules that its cost counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from archetype.spec.base import Spec
from archetype.spec.kinds import Part
from archetype.spec.registry import provided, provides

X, SOURCE = "x", "source"  # inputs of a sublayer: its input vectors, and an encoder's output
QUERIES = "queries"  # input of a key selection: the vectors that queries are computed from


class Cell(NamedTuple):
    """A box in a part's diagram, on a grid of columns and rows, with row 0 at the bottom.

    Attributes:
        name: last part of the box's id; also the module whose cost it shows, unless `rows` names others.
        column: column of its left edge.
        row: its row.
        inputs: names of the cells that it reads, or `x`, or `source`; the wire of `in_proj@2` leaves that cell above
            column 2.
        span: width in columns.
        label: text (absent: its name).
        rows: modules whose cost it shows (absent: the module with its name).
        kind: its role (absent: the sublayer's).
        shape: shape of its output, if it has no weights.
        slim: whether it is one line high.
        lanes: number of parallel wires that leave it.
        gives: activation of the sublayer that is its output (absent: the output of the module with its name).
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


def operation(
    name: str,
    column: float,
    row: int,
    inputs: tuple[str, ...] = (),
    span: float = 1,
    label: str = "",
    rows: tuple[str, ...] = (),
    gives: str = "",
) -> Cell:
    """Return the cell of an operation without matrices, one line high."""
    return Cell(name, column, row, inputs, span, label, rows, kind="operation", slim=True, gives=gives)


class Group(NamedTuple):
    """Cells that belong together, such as the cells of an expert."""

    label: str
    cells: tuple[str, ...]
    repeat: int = 1


class Inside(NamedTuple):
    """The inside of a sublayer (a mixer, cross-attention or feed-forward part) as cells.

    Attributes:
        cells: in any order.
        output: the cell whose output is the sublayer's; empty if the flow through the cells is unknown.
        groups: cells drawn in a common container.
        loops: pairs of a cell and the cell that reads its output when the next token is processed.
    """

    cells: tuple[Cell, ...]
    output: str = ""
    groups: tuple[Group, ...] = ()
    loops: tuple[tuple[str, str], ...] = ()


class Branch(NamedTuple):
    """Connection of each sublayer to the residual stream. Norms are given by the last part of their module's name.

    Attributes:
        before: norm of the sublayer's input (absent: none).
        after: norm of its output before the addition (absent: none).
        behind: norm of the sum (absent: none).
        residual: whether there is a residual connection.
        parallel: whether mixer and feed-forward part read the same vectors.
        shared_norm: whether they share one norm.
    """

    before: str = ""
    after: str = ""
    behind: str = ""
    residual: bool = True
    parallel: bool = False
    shared_norm: bool = False


class Step(NamedTuple):
    """A box on a model's stream, or a box next to the stream whose output is added to it.

    Attributes:
        name: id, and the module whose cost it shows.
        label: text.
        shape: shape of its weights or output, in the letters of the legend.
        kind: its role: embedding, norm, position, head, operation, input, output, add.
        field: part of the specification that it draws.
        slim: whether it is one line high.
        joins: name of the sum that adds it to the stream (absent: it is on the stream itself).
        is_before: whether it comes before the stream's vectors instead of being added to them.
        tied: name of the box whose table it shares (absent: none).
        detail: additional information.
        gives: activation of the model that is its output (absent: the output of the module with its name).
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
    """The blocks of a stack and its final norm.

    Attributes:
        prefix: prefix of the stack: "", "encoder.", ...
    """

    prefix: str = ""


Item = Step | Blocks | str  # item of a stream; a string is the shape of its vectors, written next to the wire


class Stream(NamedTuple):
    """The path of vectors through a model or one of its sides.

    Attributes:
        items: from input to output.
        letters: letters of rows and positions, if not B, T and S.
        is_residual: whether it is a residual stream, to which sublayers add their outputs.
    """

    items: tuple[Item, ...]
    letters: Mapping[str, str] = {}
    is_residual: bool = True


class Link(NamedTuple):
    """A connection between two streams.

    Attributes:
        kind: `tied`: both ends are boxes of one table; `sum`: a box's vectors are added at the target; `cross`: the
            cross-attention of the target stack reads a box's vectors; `state`: the layers of the target stack start
            with the last states of the layers of the source stack.
        source: name of the box, or prefix of the stack, at which it starts.
        target: name of the box, or prefix of the stack, at which it ends.
    """

    kind: Literal["tied", "sum", "cross", "state"]
    source: str
    target: str


class Streams(NamedTuple):
    """A whole model: its streams from left to right, and the links between them."""

    streams: tuple[Stream, ...]
    links: tuple[Link, ...] = ()


Text = Callable[[Any], str]  # of a formula, in the letters of shapes
DrawInside = Callable[[Any, frozenset[str]], Inside]
I = TypeVar("I", bound=DrawInside)  # noqa: E741


def inside_of(*parts: type[Spec]) -> Callable[[I], I]:
    """Register a function that draws these mixers or feed-forward parts, and classes derived from them.

    The function takes the part and the names of the modules that its cost counts, and returns an `Inside`.
    """
    return provides("diagram", *parts)


def layer_name(layer: int) -> str:
    """Name a layer by its index, or by its negative offset from the layer that is drawn."""
    return f"layer {layer}" if layer >= 0 else "the layer before" if layer == -1 else f"{-layer} layers before"


def selection_inside(selection: Part, modules: frozenset[str], queries: str, column: float, row: int = 0) -> Inside:
    """Return the cells of a key selection within its attention, grouped in a container.

    Args:
        selection: the specification.
        modules: modules that the cost of the attention counts; names of the selection's modules begin with `index.`.
        queries: cell or input from which queries are computed.
        column: first column of its cells.
        row: lowest row of its cells, above that of `queries`.
    """
    index_modules = frozenset(name.removeprefix("index.") for name in modules if name.startswith("index."))
    function = provided("diagram", type(selection))
    drawn = (
        function(selection, index_modules)
        if function
        else Inside((Cell("keys", 0, 0, (X,), rows=tuple(index_modules)),), "keys")
    )
    # Cells of the selection are renamed to their modules' names, and moved to their place within the attention.
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


def inside(part: Spec, modules: Iterable[str], function: DrawInside | None = None) -> Inside:
    """Return the cells of a part. Modules that its function does not mention go in rows above the others.

    Args:
        part: the specification.
        modules: modules that its cost counts.
        function: the function that draws it (absent: the function registered for its kind).
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
    """Draw each group that has the same cells as the first group as one box with the group's label."""
    cells = {cell.name: cell for cell in drawing.cells}
    for group in drawing.groups[1:]:
        first, repeated = ([cells[name] for name in g.cells] for g in (drawing.groups[0], group))
        if [(c.label, c.kind, c.row) for c in first] != [(c.label, c.kind, c.row) for c in repeated]:
            continue
        left, end = min(c.column for c in repeated), max(c.column + c.span for c in repeated)
        outer = tuple(dict.fromkeys(name for c in repeated for name in c.inputs if name not in group.cells))
        module_names = tuple(row for c in repeated for row in c.rows or (c.name,))
        last = repeated[-1]._replace(
            column=left, row=min(c.row for c in repeated), inputs=outer, span=1, label=group.label, rows=module_names
        )
        rest = [
            last if c.name == last.name else c for c in drawing.cells if c.name not in group.cells or c is repeated[-1]
        ]
        # Cells to the right move closer, and cells that end further right become narrower.
        removed = end - left - 1
        moved = [
            c._replace(column=c.column - removed)
            if c.column >= end
            else c._replace(span=c.span - removed)
            if c.column + c.span >= end and c is not last
            else c
            for c in rest
        ]
        drawing = drawing._replace(cells=tuple(moved), groups=tuple(g for g in drawing.groups if g is not group))
    return drawing


def _unknown(part: Spec, names: Sequence[str]) -> Inside:
    # no function is registered for this part, so a single box shows its fields
    fields = ", ".join(f"{name} {value}" for name, value in part.dump().items() if name != "kind")
    label = title(part) if isinstance(part, Part) else type(part).__name__
    return Inside((Cell(names[0], 0, 0, (X,), 3, label, tuple(names), shape=fields),), names[0])


def title(part: Part) -> str:
    """Return the title of a kind, or its `kind` in words if it has no title."""
    kind = str(getattr(part, "kind", type(part).__name__))
    own_title = vars(type(part)).get("title", "")  # a derived kind does not inherit the title
    return own_title or kind.replace("_", " ").capitalize()


def pill(name: str, label: str, shape: str, kind: str = "input", gives: str = "") -> Step:
    # the label of a stream's input or output
    return Step(name, label, shape, kind, slim=True, gives=gives)
