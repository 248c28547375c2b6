"""The inside of a mixer or a feed-forward part, on a grid of columns and rows; the first row is the lowest.

A part of its own needs nothing here: its modules are what its cost counts. Where the way of the vectors between them
teaches something, `@inside_of` registers a function that gives it, for the kind and for classes derived from it.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from archetype.parts.attention.spec import Attention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.mamba.spec import Mamba
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import Alibi, RelativeBias, Rotary
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.spec.base import Spec

X, SOURCE = "x", "source"  # inputs of a content: the vectors it reads, and an encoder's output


class Cell(NamedTuple):
    """A box of a content.

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


Draw = Callable[[Any, frozenset[str]], Inside]
D = TypeVar("D", bound=Draw)
_functions: dict[type[Spec], Draw] = {}


def inside_of(*parts: type[Spec]) -> Callable[[D], D]:
    """Function decorator: draw these parts, and classes derived from them, by this function.

    It takes the part and the names of the modules that its cost counts, and gives an `Inside`.
    """

    def register(function: D) -> D:
        _functions.update(dict.fromkeys(parts, function))
        return function

    return register


def inside(part: Spec, modules: Iterable[str], function: Draw | None = None) -> Inside:
    """The cells of a part; modules that its function says nothing of stand in rows above the others.

    Args:
        part: the specification.
        modules: that its cost counts.
        function: what draws it (absent: what is registered for it).
    """
    names = list(modules)
    function = function or next((_functions[base] for base in type(part).__mro__ if base in _functions), None)
    drawn = function(part, frozenset(names)) if function else Inside(())
    shown = {row for cell in drawn.cells for row in cell.rows or (cell.name,)}
    above = max((cell.row for cell in drawn.cells), default=-1) + 1
    rest = [name for name in names if name not in shown]
    cells = tuple(Cell(name, index % 3, above + index // 3) for index, name in enumerate(rest))
    return drawn._replace(cells=(*drawn.cells, *cells))


@inside_of(Attention)
def attention(part: Attention, modules: frozenset[str]) -> Inside:
    """Queries, keys and values; what is done to them; scores; their mixture; the last projection (Vaswani 2017)."""
    return _attention(part, modules, X)


def cross_attention(part: Attention, modules: frozenset[str]) -> Inside:
    """The same, with keys and values of an encoder's output."""
    return _attention(part, modules, SOURCE)


def _attention(part: Attention, modules: frozenset[str], source: str) -> Inside:
    cells = [Cell("q", 0, 0, (X,)), Cell("k", 1, 0, (source,)), Cell("v", 2, 0, (source,))]
    width, row, below = 3, 1, {"q": "q", "k": "k"}
    further = []
    if part.gate is not None:
        cells.append(Cell("gate", width, 0, (X,)))
        width += 1
    if globals_ := tuple(name for name in ("q_global", "k_global", "v_global") if name in modules):
        cells.append(Cell("global", width, 0, (X,), label="global q, k, v", rows=globals_))
        further, width = ["global"], width + 1
    steps = ["rope"] if isinstance(part.position, Rotary) else []
    if not isinstance(part.qk_norm, NoNorm):
        steps.insert(len(steps) if part.qk_norm_after_rope else 0, "norm")
    for step in steps:
        if step == "norm":
            for column, name in enumerate("qk"):
                norm = Cell(f"{name}_norm", column, row, (below[name],), kind="norm", slim=True, label=f"{name} norm")
                cells.append(norm)
                below[name] = norm.name
        else:
            inputs = tuple(dict.fromkeys(below.values()))
            cells.append(Cell("rope", 0, row, inputs, 2, "rotate (RoPE)", kind="position", slim=True, lanes=2))
            below = dict.fromkeys(below, "rope")
        row += 1
    inputs = tuple(dict.fromkeys(below.values()))
    own = ("scores", "score", "score_bias", "sinks")
    cells.append(Cell("scores", 0, row, inputs, 2, _scores(part), own, shape="(B, H, T, S)"))
    cells.append(Cell("mixture", 0, row + 1, ("scores", "v", *further), 3 + len(further), "weights · v",
                      shape="(B, T, HP)"))  # fmt: skip
    last, row = "mixture", row + 2
    if part.gate is not None:
        if further:  # the gate stands between them
            cells = [c._replace(column={"gate": 4, "global": 3}.get(c.name, c.column)) for c in cells]
        label = f"× {part.gate.activation}(gate)"
        cells.append(Cell("gated", 0, row, (last, "gate"), width, label, slim=True, kind="operation"))
        last, row = "gated", row + 1
    cells.append(Cell("o", 1, row, (last,)))
    return Inside(tuple(cells), "o")


def _scores(part: Attention) -> str:
    """The formula from scores to weights."""
    if part.score == "additive":
        return "softmax(wᵀ tanh(q + k))"
    scaled = "q kᵀ / √P" if part.scale is None else "q kᵀ · scale"
    scaled = f"cap({scaled})" if part.softcap is not None else scaled
    match part.position:
        case Alibi():
            return f"softmax({scaled} − m|i − j|)"
        case RelativeBias():
            return f"softmax({scaled.removesuffix(' · scale')} + bias)"
    return f"softmax({scaled})"


@inside_of(LatentAttention)
def latent_attention(part: LatentAttention, modules: frozenset[str]) -> Inside:
    """Low-rank ways of queries, and of keys and values (DeepSeek-AI 2024, figure 3)."""
    cells = [
        Cell("kv_down", 1, 0, (X,), 2),
        Cell("kv_norm", 2, 1, ("kv_down",), kind="norm", slim=True, label="norm"),
        Cell("kv_up", 2, 2, ("kv_norm",)),
        Cell("rope_k", 1, 3, ("kv_down",), label="rotate k", kind="position", slim=True),
    ]
    if isinstance(part.query, LowRankQuery):
        cells += [
            Cell("q_down", 0, 0, (X,)),
            Cell("q_norm", 0, 1, ("q_down",), kind="norm", slim=True, label="norm"),
            Cell("q_up", 0, 2, ("q_norm",)),
        ]
    else:
        cells.append(Cell("q", 0, 0, (X,)))
    query = cells[-1].name
    cells += [
        Cell("rope_q", 0, 3, (query,), label="rotate q", kind="position", slim=True),
        Cell("scores", 0, 4, ("rope_q", "rope_k", "kv_up"), 3, "softmax(q kᵀ) v", ("scores", "mixture"),
             shape="(B, H, T, S)"),
        Cell("o", 1, 5, ("scores",)),
    ]  # fmt: skip
    return Inside(tuple(cells), "o")


@inside_of(RNN)
def rnn(part: RNN, modules: frozenset[str]) -> Inside:
    """One step (Elman 1990)."""
    cells = (
        Cell("cell", 0, 0, (X,), 3, "W x + U h"),
        Cell("h", 0, 1, ("cell",), 3, f"h′ = {part.activation}(·)", slim=True, kind="operation"),
    )
    return Inside(cells, "h", loops=(("h", "cell"),))


@inside_of(GRU)
def gru(part: GRU, modules: frozenset[str]) -> Inside:
    """Reset and update gates (Cho 2014)."""
    cells = (
        Cell("cell", 0, 0, (X,), 3, "W x, U h"),
        Cell("r", 0, 1, ("cell",), 1, "σ  reset r", slim=True, kind="operation"),
        Cell("z", 2, 1, ("cell",), 1, "σ  update z", slim=True, kind="operation"),
        Cell("n", 0, 2, ("r", "cell@1"), 2, "n = tanh(W x + r · U h)", slim=True, kind="operation"),
        Cell("h", 0, 3, ("n", "z"), 3, "h′ = (1 − z) · n + z · h", slim=True, kind="operation"),
    )
    return Inside(cells, "h", loops=(("h", "cell"),))


@inside_of(LSTM)
def lstm(part: LSTM, modules: frozenset[str]) -> Inside:
    """Gates of a cell that holds (Hochreiter 1997; Gers 2000)."""
    gates = (("i", "σ  input i"), ("f", "σ  forget f"), ("g", "tanh  g"), ("o", "σ  output o"))
    cells = [Cell("cell", 0, 0, (X,), 3, "W x + U h")]
    cells += [
        Cell(name, 0.75 * index, 1, ("cell",), 0.75, label, slim=True, kind="operation")
        for index, (name, label) in enumerate(gates)
    ]
    cells += [
        Cell("c", 0, 2, ("i", "f", "g"), 2.25, "c′ = f · c + i · g", slim=True, kind="operation"),
        Cell("h", 0, 3, ("c", "o"), 3, "h′ = o · tanh(c′)", slim=True, kind="operation"),
    ]
    return Inside(tuple(cells), "h", loops=(("h", "cell"),))


@inside_of(Mamba)
def mamba(part: Mamba, modules: frozenset[str]) -> Inside:
    """Two ways: convolution and scan, and a gate (Gu 2023, figure 3)."""
    norms = tuple(name for name in ("dt_norm", "b_norm", "c_norm") if name in modules)
    has_norms = not isinstance(part.norm, NoNorm)
    cells = [
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("conv", 0, 1, ("in_proj",), label="conv, SiLU", rows=("conv",)),
        Cell("x_proj", 1, 2, ("conv",)),
        Cell("dt_proj", 1, 4, ("norms",) if has_norms else ("x_proj",)),
        Cell("scan", 0, 5, ("conv", "dt_proj"), 2, "selective scan", ("scan", "A_log", "D"), shape="(B, T, I)"),
        Cell("gated", 0, 6, ("scan", "in_proj@2"), 3, "× SiLU(z)", slim=True, kind="operation"),
        Cell("out_proj", 1, 7, ("gated",)),
    ]
    if has_norms:
        cells.append(Cell("norms", 1, 3, ("x_proj",), label="norms", rows=norms, kind="norm", slim=True))
    else:
        cells = [cell._replace(row=cell.row - 1) if cell.row > 3 else cell for cell in cells]
    return Inside(tuple(cells), "out_proj")


@inside_of(Mamba2)
def mamba2(part: Mamba2, modules: frozenset[str]) -> Inside:
    """A scan in chunks of products, and a norm with a gate (Dao 2024, figure 6)."""
    own = ("scores", "mixture", "memory", "dt_bias", "A_log", "D")
    cells = (
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("conv", 0, 1, ("in_proj",), label="conv, SiLU", rows=("conv",)),
        Cell("ssd", 0, 2, ("conv", "in_proj@1"), 2, "SSD in chunks", own, shape="(B, T, HP)"),
        Cell("norm", 0, 3, ("ssd", "in_proj@2"), 3, "norm(y × SiLU(z))", slim=True, kind="norm"),
        Cell("out_proj", 1, 4, ("norm",)),
    )
    return Inside(cells, "out_proj")


@inside_of(GatedDeltaNet)
def gated_delta_net(part: GatedDeltaNet, modules: frozenset[str]) -> Inside:
    """Queries, keys and values through a convolution, the rule, a norm with a gate (Yang 2024b, figure 1)."""
    cells = (
        Cell("q", 0, 0, (X,)),
        Cell("k", 1, 0, (X,)),
        Cell("v", 2, 0, (X,)),
        Cell("decay", 3, 0, (X,), label="decay a, rate b", rows=("a", "b", "dt_bias", "A_log")),
        Cell("gate", 4, 0, (X,)),
        Cell("conv", 0, 1, ("q", "k", "v"), 3, "conv, SiLU", rows=("conv",), lanes=3),
        Cell("rule", 0, 2, ("conv", "decay"), 4, "gated delta rule", ("scores", "mixture", "memory"),
             shape="(B, T, HQ)"),
        Cell("norm", 0, 3, ("rule", "gate"), 5, "norm(y) × SiLU(gate)", slim=True, kind="norm"),
        Cell("o", 2, 4, ("norm",)),
    )  # fmt: skip
    return Inside(cells, "o")


@inside_of(ShortConvolution)
def short_convolution(part: ShortConvolution, modules: frozenset[str]) -> Inside:
    """A convolution between two gates (Liquid AI 2025)."""
    cells = (
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("product", 0, 1, ("in_proj",), 2, "b × x", slim=True, kind="operation"),
        Cell("conv", 0.5, 2, ("product",)),
        Cell("gated", 0, 3, ("conv", "in_proj@2"), 3, "c × conv", slim=True, kind="operation"),
        Cell("out_proj", 1, 4, ("gated",)),
    )
    return Inside(cells, "out_proj")


@inside_of(MLP, GatedMLP)
def mlp(part: MLP | GatedMLP, modules: frozenset[str]) -> Inside:
    """A projection up, perhaps times a gate, and one down."""
    gated = isinstance(part, GatedMLP)
    cells = _expert(part, "", 0.5 if gated else 1, 0)
    return Inside(tuple(cells), "down")


ACTIVATIONS = {
    "relu": "ReLU", "relu2": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU", "silu": "SiLU", "tanh": "tanh",
    "sigmoid": "sigmoid",
}  # fmt: skip


def activation_name(activation: Any) -> str:
    """GELU for gelu."""
    name = activation if isinstance(activation, str) else str(activation.kind)
    return ACTIVATIONS.get(name, name)


def _expert(part: MLP | GatedMLP, prefix: str, column: float, row: int) -> list[Cell]:
    """The cells of a feed-forward network, one or two columns wide."""
    act = activation_name(part.activation)

    def cell(name: str, column: float, row: int, inputs: tuple[str, ...]) -> Cell:
        rows = (f"{prefix}{name}", f"{prefix}{name}_bias")
        return Cell(f"{prefix}{name}", column, row, inputs, label=name, rows=rows)

    if isinstance(part, GatedMLP):
        up = "(1 + up)" if part.unit_offset else "up"
        product = f"{act}(gate) × {up}"
        return [
            cell("gate", column, row, (X,)),
            cell("up", column + 1, row, (X,)),
            Cell(f"{prefix}act", column, row + 1, (f"{prefix}gate", f"{prefix}up"), 2, product, kind="operation",
                 slim=True),
            cell("down", column + 0.5, row + 2, (f"{prefix}act",)),
        ]  # fmt: skip
    return [
        cell("up", column, row, (X,)),
        Cell(f"{prefix}act", column, row + 1, (f"{prefix}up",), 1, act, slim=True, kind="operation"),
        cell("down", column, row + 2, (f"{prefix}act",)),
    ]


@inside_of(MixtureOfExperts)
def experts(part: MixtureOfExperts, modules: frozenset[str]) -> Inside:
    """A router, experts one behind the other, and perhaps a shared one (Shazeer 2017; Dai 2024)."""
    width = 2 if isinstance(part.expert, GatedMLP) else 1
    cells = _expert(part.expert, "experts.", 0, 1)
    groups = [Group(f"{part.num_experts} experts", tuple(cell.name for cell in cells), part.num_experts)]
    column = width + 0.25
    chosen = f"top {part.experts_per_token} of {part.num_experts}"
    cells.append(Cell("router", column, 1, (X,)))
    cells.append(Cell("top", column, 2, ("router",), label=chosen, rows=("top",), slim=True, kind="operation"))
    inputs = ["experts.down", "top"]
    column += 1
    if part.shared is not None:
        column += 0.25
        shared = _expert(part.shared, "shared.", column, 1)
        cells += shared
        groups.append(Group("shared", tuple(cell.name for cell in shared)))
        column += 2 if isinstance(part.shared, GatedMLP) else 1
        inputs.append("shared.down")
        if part.shared_gate:
            column += 0.25
            cells.append(Cell("shared_gate", column, 1, (X,), label="shared gate"))
            inputs.append("shared_gate")
            column += 1
    cells.append(Cell("weighted", 0, 5, tuple(inputs), column, "Σ weight · expert(x)", slim=True, kind="operation"))
    return Inside(tuple(cells), "weighted", tuple(groups))
