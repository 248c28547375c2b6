"""Describe the finding of a trained part in sentences: which arm is better, by how much, how certain, at what cost."""

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from archetype.errors import enumeration
from archetype.studies.evidence import ALPHA, CONTROL_FAILED, DIRECTION, NO_DIFFERENCE, UNCALIBRATED
from archetype.studies.retention import retention_sentences
from archetype.table import quantity

METRICS = {
    "test.bits_per_byte": "bits per byte",
    "test.loss": "test loss",
    "test.accuracy": "accuracy",
    "test.bits_per_parameter": "bits per parameter",
}
COSTS = {
    "parameters": "parameters",
    "flops_per_token": "FLOPs per token",
    "state_bytes": "bytes of state",
    "step_bytes": "memory of a training step",
}
ENDS = {"diverged": "diverged", "learned_nothing": "predict the validation text no better than a guess"}
EQUAL = 0.005  # relative difference below which two costs are called the same


def sentences(part: Mapping[str, Any]) -> list[str]:
    first, as_is = part["comparisons"][0], part.get("as_is", ())
    tokens = {name: f"{arm['tokens']:,}" for name, arm in part["arms"].items() if name not in as_is}
    runs = len(first["seeds"]) * len(tokens)
    is_equal = len({*tokens.values()}) == 1
    each = {*tokens.values()} if is_equal else (f"{count} ({arm})" for arm, count in tokens.items())
    amount = enumeration(each, "or")
    lines = [f"Each of {runs} runs learned from {amount} tokens of {first['name']}."] if runs else []
    if as_is:
        lines.append(f"{enumeration(as_is)} {'is' if len(as_is) == 1 else 'are'} evaluated without training.")
    if taught := part.get("taught"):
        of = f"training loss of {enumeration(taught)}"
        lines.append(f"The {of} is a distance from the teacher, and cannot be compared with a loss of the text.")
    for key, end in ENDS.items():
        for arm, ended in first.get(key, {}).items():
            if any(ended):
                lines.append(f"{sum(ended)} of {len(ended)} runs of {arm} {end}.")
    for test in part["tests"]:
        lines += [_finding(part, test), _cost(part, test["arm"])]
    return [*lines, *retention_sentences(part), *_slopes(part)]


def _finding(part: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    effect, control, arm = test["effect"], part["control"], test["arm"]
    effect_size, low, high = effect["effect"]
    if test["reason"].startswith(CONTROL_FAILED) or effect_size is None:
        return f"{arm} cannot be judged: {test['reason']}{_end(test)}."
    metric = METRICS.get(part["metric"]["name"], part["metric"]["name"])
    interval = "no interval from one pair" if low is None else f"95 % interval {low:.4g} to {high:.4g}"
    match part["decide"]["kind"]:
        case "slope":
            return (
                f"Over the arms the logarithm of the {metric} has the slope {effect_size:.3g} ({interval}){_end(test)}."
            )
        case "identity":
            return f"{arm} and {control}: {test['reason']} in {metric}{_end(test)}."
        case "within":
            return f"{arm} has {effect_size:.4g} {metric} ({interval}){_end(test)}."
    values = part["comparisons"][0]["values"]
    pairs = [pair for pair in zip(values[arm], values[control], strict=True) if None not in pair]
    treated, other = map(mean, zip(*pairs, strict=True))
    share = "" if effect.get("share") is None else f", {effect['share']:+.2%}"
    is_better = (effect_size < 0) == (part["metric"]["better"] == "lower")
    certainty, p = interval, effect["adjusted_p"]
    if p is not None:
        certainty += f"; p = {p:.2g} after Holm's correction"
    if test["verdict"] == NO_DIFFERENCE and effect["interval90"] and effect["margin"]:
        claim = f"{arm} is as good as {control} in {metric}, to within {effect['margin']:.3g}"
        certainty = f"90 % interval {effect['interval90'][1]:.4g} to {effect['interval90'][2]:.4g}"
    elif not _is_apart(part, effect):
        claim = f"{arm} and {control} cannot be told apart in {metric}"
    else:
        claim = f"{arm} is {'better' if is_better else 'worse'} than {control} in {metric}"
    difference = f"{treated:.4g} and {other:.4g}, a difference of {effect_size:+.4g}{share} ({certainty})"
    count = f"{len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'} of seeds"
    if {arm, control} <= {*part.get("as_is", ())}:
        count = "the passages of the test"
    return f"{claim}: {difference} over {count}{_over_other_data(effect)}{_end(test)}."


def _over_other_data(effect: Mapping[str, Any]) -> str:
    # absent from reports without counted answers
    if not effect.get("over_examples"):
        return ""
    _, low, high = effect["over_examples"]
    return f", and {low:+.4g} to {high:+.4g} over other test data of this kind too"


def _is_apart(part: Mapping[str, Any], effect: Mapping[str, Any]) -> bool:
    _, low, high = effect["effect"]
    # only the rule `difference` claims significance: its p-value must pass Holm's correction too
    tests_difference = part["decide"]["kind"] == "difference"
    return low is not None and not low <= 0 <= high and not (tests_difference and effect["adjusted_p"] >= ALPHA)


def _end(test: Mapping[str, Any]) -> str:
    if test["verdict"] in (DIRECTION, UNCALIBRATED):
        return f"; {test['verdict']}"
    return f"; verdict: {test['verdict']}"


def _cost(part: Mapping[str, Any], arm: str) -> str:
    pairs = [(name, part["arms"][arm].get(key), part["arms"][part["control"]].get(key)) for key, name in COSTS.items()]
    terms = [_ratio(name, value, other) for name, value, other in pairs if value is not None and other is not None]
    *most, last = filter(None, terms)
    return f"Compared with {part['control']}, {arm} has {', '.join(most)} and {last}."


def _ratio(name: str, value: float, other: float) -> str:
    if value == other == 0:
        return ""
    # equal, or solved to be almost equal
    if abs(value - other) <= EQUAL * other:
        return f"the same {name}"
    return f"{value / other:.3g} times the {name}" if other else f"{quantity(value).strip()} {name} instead of none"


def _slopes(part: Mapping[str, Any]) -> Iterator[str]:
    if part["slopes"]:
        each = (
            f"{slope:+.3f} [{low:+.3f}, {high:+.3f}] for {arm}" for arm, (slope, low, high) in part["slopes"].items()
        )
        metric = METRICS.get(part["metric"]["name"], part["metric"]["name"])
        yield f"Over the sizes, {metric} changes as training compute to the power of {', '.join(each)}."
