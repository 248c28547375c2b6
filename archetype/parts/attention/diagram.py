"""Diagrams of attention."""

from archetype.parts.attention.spec import LAMBDAS, Attention
from archetype.parts.convolutions.diagram import with_convolutions
from archetype.parts.position.spec import Alibi, RelativeBias, Rotary
from archetype.roles.drawing import SOURCE, Cell, Inside, X, inside_of, layer_name, operation, selection_inside


@inside_of(Attention)
def attention(part: Attention, modules: frozenset[str]) -> Inside:
    return _attention(part, modules, X)


def cross_attention(part: Attention, modules: frozenset[str]) -> Inside:
    """Draw cross-attention, with keys and values from an encoder's output."""
    return _attention(part, modules, SOURCE)


def _attention(part: Attention, modules: frozenset[str], source: str) -> Inside:
    cells = [Cell("q", 0, 0, (X,)), Cell("k", 1, 0, (source,)), Cell("v", 2, 0, (source,))]
    if part.joint_convolution is not None:
        modules_of_both = ("q", "joint.depthwise", "joint.grouped")
        cells[0] = cells[0]._replace(label="q, convolved with k", rows=modules_of_both)
    width, row, below, values = 3, 1, {"q": "q", "k": "k"}, "v"
    computed = "qk"  # heads that are normalized and rotated in this layer
    if part.keys_as_values:
        cells[2:] = [operation("v", 2, 1, ("k",), label="keys as values")]
    if part.keys_from is not None:
        cells[1:] = [
            Cell(name, 1 + column, 0, label=f"{name} of {layer_name(part.keys_from)}", kind="operation")
            for column, name in enumerate("kv")
        ]
        computed = "q"
    elif not part.value_norm.is_absent:
        values = "value_norm"
        cells.append(Cell(values, 2, 1 + part.keys_as_values, ("v",), kind="norm", slim=True, label="v norm"))
    further: list[str] = []
    if part.gate is not None:
        cells.append(Cell("gate", width, 0, (X,), rows=("gate", "gate_bias", "gate_gain")))
        width += 1
    if part.value_embedding is not None:
        value_modules = tuple(name for name in ("value_embedding", "value_gate", "value_scale") if name in modules)
        cells.append(Cell("token_values", width, 0, (X,), label="value embedding", rows=value_modules))
        further, width = ["token_values"], width + 1
    if globals_ := tuple(name for name in ("q_global", "k_global", "v_global") if name in modules):
        cells.append(Cell("global", width, 0, (X,), label="global q, k, v", rows=globals_))
        further, width = [*further, "global"], width + 1
    if part.position.query_features:
        cells.append(Cell("position_query", width, 0, (X,), label="r", rows=("position_query",)))
        width += 1
    steps = ["rope"] if isinstance(part.position, Rotary) else []
    if not part.qk_norm.is_absent:
        steps.insert(len(steps) if part.qk_norm_after_rope else 0, "norm")
    for step in steps:
        if step == "norm":
            for column, name in enumerate(computed):
                norm = Cell(f"{name}_norm", column, row, (below[name],), kind="norm", slim=True, label=f"{name} norm")
                cells.append(norm)
                below[name] = norm.name
        else:
            inputs, span = tuple(dict.fromkeys(below[name] for name in computed)), len(computed)
            cells.append(
                Cell("rope", 0, row, inputs, span, "rotate (RoPE)", kind="position", slim=True, lanes=span, gives="q")
            )
            below |= dict.fromkeys(computed, "rope")
        row += 1
    inputs, row = tuple(dict.fromkeys(below.values())), max(row, 1 + part.keys_as_values)
    inputs += ("position_query",) if part.position.query_features else ()
    index = Inside(())
    if part.index is not None:
        reads = (inputs[0], row) if part.index.reads_heads else (X, 0)
        index = selection_inside(part.index, modules, reads[0], width + 0.5, reads[1])
    if index.output:
        row = max(row, 1 + max(cell.row for cell in index.cells))
        inputs = (*inputs, index.output)
    score_modules = ("scores", "score", "score_bias", "sinks", "query_gain", "key_factors", "key_bias")
    keys = "T_s" if source == SOURCE else "S"
    cells.append(
        Cell("scores", 0, row, inputs, 2, _scores(part), score_modules, shape=f"(B, H, T, {keys})", gives="weights")
    )
    cells.append(
        Cell(
            "mixture",
            0,
            row + 1,
            ("scores", values, *further),
            3 + len(further),
            "weights · v" if part.value_scale == 1.0 else f"weights · {part.value_scale:g} v",
            shape="(B, T, HP)" if part.v_head_dim in (None, part.head_dim) else "(B, T, HQ)",
            gives="heads",
        )
    )
    last, row = "mixture", row + 2
    if part.differential is not None:
        lambdas = tuple(f"differential.{name}" for name in LAMBDAS)
        label = "norm of (first − λ second)" if not part.differential.norm.is_absent else "first − λ second"
        rows = (*lambdas, "differential.norm")
        cells.append(Cell("differential", 0, row, (last,), 3 + len(further), label, rows))
        last, row = "differential", row + 1
    if part.gate is not None:
        if further:  # move the gate to the outside
            cells = [c._replace(column={"gate": 4, further[0]: 3}.get(c.name, c.column)) for c in cells]
        label = f"× {part.gate.activation}(gate)"
        cells.append(operation("gated", 0, row, (last, "gate"), width, label, gives="o.in"))
        last, row = "gated", row + 1
    if not part.heads_norm.is_absent:
        cells.append(Cell("heads_norm", 1, row, (last,), kind="norm", slim=True, label="norm of heads"))
        last, row = "heads_norm", row + 1
    cells.append(Cell("o", 1, row, (last,)))
    places = {"q": "q", "k": "k", "v": "v", "output": "o"}
    return with_convolutions(Inside((*cells, *index.cells), "o", index.groups), part.convolutions, places)


NAMES = {"standard": "softmax", "off_by_one": "softmax₁", "softpick": "softpick"}


def _scores(part: Attention) -> str:
    return _standard_scores(part).replace("softmax", NAMES[part.softmax])


def _standard_scores(part: Attention) -> str:
    if part.score == "additive":
        return "softmax(wᵀ tanh(q + k))"
    scaled = "q kᵀ / √P" if part.scale is None else "q kᵀ · scale"
    scaled = f"cap({scaled})" if part.softcap is not None else scaled
    if part.key_bias:
        return f"softmax({scaled} + exp(a softplus(v W)))"
    if part.position.query_features:
        return f"softmax({scaled} + r · bank)"
    if part.position.reads_queries:
        return f"softmax({scaled.replace('q kᵀ', 'q (k + r)ᵀ')})"
    match part.position:
        case Alibi():
            return f"softmax({scaled} − slope · distance)"
        case RelativeBias():
            return f"softmax({scaled.removesuffix(' · scale')} + bias)"
    return f"softmax({scaled})"
