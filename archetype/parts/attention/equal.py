"""Attention fields that can be added without changing the output, and the initial values of their tensors."""

from typing import Any, cast

from torch.nn.functional import softplus

from archetype.nn.heads import with_bias
from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import transplant_inner
from archetype.parts.attention.spec import Attention, OutputGate, QueryScale
from archetype.parts.position.frequencies import rotates_alike
from archetype.roles.pattern import MaskContext, Pattern, pattern_rule


def equal_fields(at: Transfer[Attention]) -> set[str]:
    """Return the fields whose difference changes no output in the new model's context."""
    old, new, length = at.old, at.new, at.new_sizes["T"]
    before, after = ((part.position, part.sizes(sizes["D"]).head_dim) for part, sizes in at.both)
    pairs = getattr(at.module, "pairs", None)  # cross-attention always attends to the whole source
    causal = pairs is not None and bool(cast(Any, pairs).causal)
    is_equal = {
        "pattern": all(sees_all(part.pattern, length, causal) for part in (old, new)),
        "index": all(part.index is None or part.index.sees_all(length) for part in (old, new)),
        "position": rotates_alike(before, after, length)
        or (old.position.is_absent and (new.stack_bias is not None or new.position.reads_queries)),
        "query_scale": scales_alike(old.query_scale, new.query_scale, length),
        # the output follows the heads in proportion
        **dict.fromkeys(
            ("gate", "gate_gain"), old.gate is None and new.heads_norm.is_absent and new.differential is None
        ),
        "value_embedding": old.value_embedding is None,
    }
    return {name for name, equal in is_equal.items() if equal}


def fold_factors(at: Transfer[Attention]) -> None:
    """Multiply the donor's values by the ratio of both parts' constant factors."""
    old, new = at.old, at.new
    if old.value_scale != new.value_scale and old.value_norm.is_absent and old.clip_qkv is None:
        ratio = old.value_scale / new.value_scale
        for name in {"v.weight", "v.bias"} & at.donated.keys():
            at.compute(name, at.donated[name] * ratio, f"times {ratio:.6g}, the ratio of value_scale")
            at.old = old.replace(value_scale=new.value_scale)
            at.promise(Start.ROUNDED, "values are multiplied by the ratio of value_scale")


def begin(at: Transfer[Attention]) -> None:
    """Initialize the tensors of fields that the donor lacks so that they have no effect, and drop its index."""
    old, new = at.old, at.new
    if new.value_embedding is not None and old.value_embedding is None:
        at.fill("value_embedding.weight", 0.0)
        for name in {"value_scale", "value_gate.weight"} & at.left:
            at.keep_initial(name)
    if new.position.reads_queries and old.position.is_absent:
        for name in sorted(name for name in at.left if name.startswith("score_bias.")):
            at.fill(name, 0.0)
        for name in {"position_query.weight"} & at.left:
            at.keep_initial(name)
    if new.gate is not None and old.gate is None:
        for name in {"gate.weight", "gate_bias"} & at.left:
            at.fill(name, 0.0)
    if new.index is not None and type(new.index) is not type(old.index):
        transplant_inner(at, "index", "", old, new.index)
    if old.index is not None and (new.index is None or type(new.index) is not type(old.index)):
        at.donated = {name: tensor for name, tensor in at.donated.items() if not name.startswith("index.")}


def begin_norms(at: Transfer[Attention]) -> None:
    """Initialize a new QK-norm's gains to the size of queries and keys on the text, which the norm would remove."""
    missing = [name for name in "qk" if f"{name}_norm.weight" in at.left and f"{name}_norm.weight" not in at.donated]
    moment = at.moment() if missing and at.gains is None else None  # of inputs with the gains
    if moment is None:
        return
    for name in missing:
        rows = with_bias(at.donated, name).to(moment)  # (HP, D + 1)
        size = (rows @ moment * rows).sum(1).mean().sqrt() - float(getattr(at.new.qk_norm, "unit_offset", False))
        weight = size.expand(at.tensors[f"{name}_norm.weight"].shape)
        at.put(f"{name}_norm.weight", weight, "new", (f"{name}.weight",), "the root mean square on the text")


def open_gate(at: Transfer[Any], gate: OutputGate) -> None:
    """Begin with a gate that is the same for every input, and divide the output projection by it."""
    for name in {"gate.weight", "gate_bias"} & at.tensors.keys():
        at.fill(name, 0.0)
    weight = at.tensors["o.weight"]
    half = 0.5 if gate.activation == "sigmoid" else float(softplus(weight.new_zeros((), dtype=weight.dtype)))
    weight.div_(half)
    at.note("o.weight", f"divided by the gate's first value, {half:.3g}", computed=True)


def sees_all(pattern: Pattern, length: int, causal: bool) -> bool:
    """Return whether a pattern allows every pair in a context of this length."""
    pairs = length * (length + 1) // 2 if causal else length * length
    return pattern_rule(pattern).pairs(MaskContext(causal, length)) == pairs


def scales_alike(old: QueryScale | None, new: QueryScale | None, length: int) -> bool:
    """Return whether queries are scaled alike at all positions of a context."""
    # no factor changes before `length`, except for powers
    first = all(scale is None or length - 1 + scale.offset < scale.length for scale in (old, new))
    return old == new or (first and all(scale is None or scale.form != "power" for scale in (old, new)))
