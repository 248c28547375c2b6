"""One size of a specification, solved so that it costs as much as another."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from archetype.errors import SpecError
from archetype.estimate.report import cost_report, total_parameters
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign, value_at

MEASURES = ("parameters", "active", "flops", "state")
FEW = 256  # values up to here are all tried: numbers of layers and heads have no common step
LARGEST = 2**24
MISS = 0.01  # of the target: by how much a field that ends short of it may still be said to match


class Match(NamedTuple):
    """The nearest specification that one field can give."""

    spec: ModelSpec
    path: str
    before: int
    after: int
    amount: int  # of the measure, now
    target: int


def match(model: ModelSpec, other: ModelSpec, measure: str, path: str | None = None) -> Match:
    """Change one whole number of `model` until it comes as near to `other` as that number can bring it.

    Args:
        model: what is changed.
        other: what it should cost as much as.
        measure: parameters; active ones for each token; FLOPs of a forward pass; bytes of the state, both of
            one row as long as the shorter of the two contexts.
        path: the field (absent: the width of the feed-forward parts, or of the model; of `state`, the key/value heads).

    Raises:
        SpecError: there is no such measure, the field is not a whole number, or none of its values comes near.
    """
    if measure not in MEASURES:
        raise SpecError("match", f"there is no measure {measure!r}", f"use one of {', '.join(MEASURES)}")
    length = min(model.context_length, other.context_length)
    path = path or _usual_path(model, measure)
    before = value_at(model, path)
    before = before if before is not None or not path.endswith("num_kv_heads") else _num_heads(model, path)
    if not isinstance(before, int) or isinstance(before, bool):
        raise SpecError(path, f"{before!r} is not a whole number", "name a size, such as d_model")
    target = amount(other, measure, length)
    values = _possible_values(model, path, before)

    def amount_at(value: int) -> int:
        return amount(assign(model, [f"{path}={value}"]), measure, length)

    place = bisect_left(values, target, key=amount_at)
    near = values[max(place - 1, 0) : place + 1]
    after = min(near, key=lambda value: abs(amount_at(value) - target))
    least, most = amount_at(values[0]), amount_at(values[-1])
    if not least <= target <= most and abs(amount_at(after) - target) > MISS * target:
        reach = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        cause = f"gives {reach} of {measure}, and {other.name or 'the other'} has {target:,}"
        raise SpecError(path, cause, "solve another size (--solve PATH), or change others first")
    return Match(assign(model, [f"{path}={after}"]), path, before, after, amount_at(after), target)


def amount(model: ModelSpec, measure: str, length: int) -> int:
    """How much of a measure a specification has, of one row of `length` tokens."""
    if measure == "parameters":
        return total_parameters(model)
    report = cost_report(model, batch=1, length=length)
    if measure == "active":
        return report.parameters["active"]
    return report.flops["forward"] if measure == "flops" else report.state["bytes"]


def _usual_path(model: ModelSpec, measure: str) -> str:
    """The field that changes the measure and nothing of the model's form."""
    layers = getattr(model, "layers", ())
    if measure == "state" and layers and all("num_kv_heads" in type(block.mixer).model_fields for block in layers):
        return "layers[*].mixer.num_kv_heads"
    widths = [getattr(block.feedforward, "d_ff", None) for block in layers]
    if measure != "state" and widths and all(isinstance(width, int) for width in widths):
        return "layers[*].feedforward.d_ff"
    return "d_model"


def _num_heads(model: ModelSpec, path: str) -> int:
    """The number of key/value heads where none is given."""
    return int(value_at(model, path.replace("num_kv_heads", "num_heads")))


def _possible_values(model: ModelSpec, path: str, value: int) -> Sequence[int]:
    """The values to try: every one that is accepted where the field is small, else multiples of its smallest step."""
    if value <= FEW:
        return [number for number in range(1, max(2 * value, 64) + 1) if _is_accepted(model, path, number)]
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
