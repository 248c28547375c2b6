"""Solve for one size of a specification so that its cost equals another model's cost or a budget."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from archetype.errors import SpecError
from archetype.estimate.report import cost_report, total_parameters
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign, value_at

MEASURES = ("parameters", "active", "flops", "state")
FEW = 256  # fields up to this value are tried one by one: numbers of layers and heads have no common step
LARGEST = 2**24  # of the values that are tried
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
BYTES = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}
STATE_SIZES = ("num_kv_heads", "kv_lora_rank")  # fields of a mixer that determine only the size of its state
MISS = 0.01  # accepted relative deviation from the target


class Match(NamedTuple):
    """The specification whose cost is closest to the target."""

    spec: ModelSpec
    path: str
    before: int
    after: int
    amount: int  # amount of the measure after the change
    target: int


def match(model: ModelSpec, other: ModelSpec | int, measure: str, path: str | None = None) -> Match:
    """Change one integer field of `model` until its cost is as close to the target as possible.

    Args:
        other: a model whose cost is the target, or the target itself.
        measure: parameters; active parameters per token; FLOPs of a forward pass; bytes of the state. The last two are
            for one sequence as long as the context (of two models, the shorter context).
        path: the field (absent: the width of the feed-forward parts, or of the model; for `state`, the number of
            key/value heads, or the rank of the latent).

    Raises:
        SpecError: the measure is unknown, the field is not an integer, or no value comes close.
    """
    if measure not in MEASURES:
        raise SpecError("match", f"there is no measure {measure!r}", f"use one of {', '.join(MEASURES)}")
    length = model.context_length if isinstance(other, int) else min(model.context_length, other.context_length)
    path = path or _usual_path(model, measure)
    before = value_at(model, path)
    before = before if before is not None or not path.endswith("num_kv_heads") else _num_heads(model, path)
    if not isinstance(before, int) or isinstance(before, bool):
        raise SpecError(path, f"{before!r} is not a whole number", "name a size, such as d_model")
    target = other if isinstance(other, int) else amount(other, measure, length)
    values = _possible_values(model, path, before)

    def amount_at(value: int) -> int:
        return amount(assign(model, [f"{path}={value}"]), measure, length)

    index = bisect_left(values, target, key=amount_at)  # costs grow with a size, so few values have to be tried
    near = values[max(index - 1, 0) : index + 1]
    after = min(near, key=lambda value: abs(amount_at(value) - target))
    least, most = amount_at(values[0]), amount_at(values[-1])
    if not least <= target <= most and abs(amount_at(after) - target) > MISS * target:
        reach = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        whose = "the budget is" if isinstance(other, int) else f"{other.name or 'the other'} has"
        cause = f"reaches {reach} {measure}, but {whose} {target:,}"
        raise SpecError(path, cause, "solve another size (--solve PATH), or change others first")
    return Match(assign(model, [f"{path}={after}"]), path, before, after, amount_at(after), target)


def read_amount(text: str, measure: str) -> int | None:
    """Read an amount such as `3M`, or `64MiB` for the state; return None if the text is not a number.

    Raises:
        SpecError: the unit does not belong to the measure, or the amount is zero.
    """
    parsed = re.fullmatch(r"(\d+(?:[_,]\d{3})*(?:\.\d+)?) ?([A-Za-z]*)", text)
    if parsed is None:
        return None
    units = BYTES if measure == "state" else COUNTS
    value = float(re.sub("[_,]", "", parsed[1])) * units.get(parsed[2].lower(), 0)
    if value < 1:
        example = "64MiB, with one of KiB, MiB, GiB" if measure == "state" else "3M, with one of k, M, G, T"
        raise SpecError("--match", f"{text!r} is not an amount of {measure}", f"write it as {example}")
    return round(value)


def amount(model: ModelSpec, measure: str, length: int) -> int:
    """Return the value of a measure, such as FLOPs, of a specification for one sequence of `length` tokens."""
    if measure == "parameters":
        return total_parameters(model)
    report = cost_report(model, batch=1, length=length)
    if measure == "active":
        return report.parameters["active"]
    return report.flops["forward"] if measure == "flops" else report.state["bytes"]


def _usual_path(model: ModelSpec, measure: str) -> str:
    layers = getattr(model, "layers", ())
    for name in STATE_SIZES if measure == "state" and layers else ():
        if all(name in type(block.mixer).model_fields for block in layers):
            return f"layers[*].mixer.{name}"
    widths = [getattr(block.feedforward, "d_ff", None) for block in layers]
    if measure != "state" and widths and all(isinstance(width, int) for width in widths):
        return "layers[*].feedforward.d_ff"
    return "d_model"


def _num_heads(model: ModelSpec, path: str) -> int:
    return int(value_at(model, path.replace("num_kv_heads", "num_heads")))


def _possible_values(model: ModelSpec, path: str, value: int) -> Sequence[int]:
    # All valid values of a small field; for a large field, multiples of the smallest step that is valid (a width may
    # have to be divisible by the number of heads).
    if value <= FEW:
        return [candidate for candidate in range(1, max(2 * value, 64) + 1) if _is_accepted(model, path, candidate)]
    step = next((step for step in range(1, value + 1) if _is_accepted(model, path, value + step)), value)
    first, last = value % step or step, value
    while last < LARGEST and _is_accepted(model, path, 2 * last):
        last *= 2
    return range(first, last + 1, step)


def _is_accepted(model: ModelSpec, path: str, value: int) -> bool:
    try:
        assign(model, [f"{path}={value}"])
    except SpecError:
        return False
    return True
