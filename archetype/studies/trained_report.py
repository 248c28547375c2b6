"""Report on a trained part as Markdown and text: sentences, tests, losses, metric values and trials."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from archetype.studies.budgets import budget_rows
from archetype.studies.markdown import markdown_table
from archetype.studies.retention import HEADINGS, retention_rows, state_text
from archetype.studies.statistics import paired_interval
from archetype.table import Table

MATCHED = ("parameters", "non_embedding", "active", "flops_per_token", "state_bytes", "tokens")
TAUGHT = " with the teacher"
Part = Mapping[str, Any]


def trained_lines(part: Part) -> list[str]:
    tests = part["tests"]
    lines = [*(f"- {sentence}" for sentence in part.get("sentences", ())), ""]
    lines += [markdown_table(*_tests_table(part)), "", _figures_table(tests), ""]
    if losses := _losses_table(part):
        lines += ["Losses at the end in nats a token, means over the seeds:", "", markdown_table(*losses), ""]
    if retained := retention_rows(part):
        lines += [f"Retained of {part['control']}, and {state_text(part)}:", "", markdown_table(HEADINGS, retained), ""]
    lines += [_matched_markdown(part["arms"]), ""]
    for comparison in part["comparisons"]:
        lines += _comparison_lines(part, comparison, [test["arm"] for test in tests])
    if part.get("slopes"):
        rows = [
            (arm, f"{slope:+.4f}", f"[{low:+.4f}, {high:+.4f}]") for arm, (slope, low, high) in part["slopes"].items()
        ]
        headings = ("arm", f"slope of log {part['metric']['name']} over log FLOPs", "interval of 95 %")
        lines += ["Over the sizes:", "", markdown_table(headings, rows), ""]
    if part["tuning"]["arms"]:
        lines += _trial_lines(part["tuning"])
    for test in tests:
        if change := test["effect"]["would_change"]:
            of_arm = f" on {test['arm']}" if len(tests) > 1 else ""
            lines += [f"What would have changed this verdict{of_arm}: {change}.", ""]
    return lines


def trained_text(part: Part) -> str:
    losses = _losses_table(part)
    tables = [str(Table(*_tests_table(part))), *([f"losses in nats\n{Table(*losses)}"] if losses else [])]
    if retained := retention_rows(part):
        tables.append(
            f"retained of {part['control']}, and {state_text(part)}\n{Table(HEADINGS, retained, text_columns=3)}"
        )
    return "\n".join([*tables, *part.get("sentences", ()), *_others(part)])


def matched_table(arms: Mapping[str, Any]) -> str:
    return str(Table(("arm", *(name.replace("_", " ") for name in MATCHED)), _matched_rows(arms)))


def _tests_table(part: Part) -> tuple[Sequence[str], list[list[str]]]:
    is_share = part["decide"]["kind"] not in ("slope", "within")
    rows = []
    for test in part["tests"]:
        effect = test["effect"]
        figures = [None if value is None else f"{value:+.4g}" for value in effect["effect"]]
        mean, (low, high) = figures[0] or "none", (text or "without end" for text in figures[1:])
        share = f"{effect['share']:+.2%}" if is_share and effect.get("share") is not None else ""
        p = "" if effect.get("adjusted_p") is None else f"{effect['adjusted_p']:.2g}"
        rows.append([test["arm"], mean, f"[{low}, {high}]", share, p, test["verdict"]])
    name = f"minus {part['control']}" if is_share else "value"
    return ("arm", name, "interval of 95 %", "share", "p after Holm", "verdict"), rows


def _losses_table(part: Part) -> tuple[Sequence[str], list[list[str]]] | None:
    first = part["comparisons"][0]
    # older reports
    if "losses" not in first:
        return None
    names = ("training", "validation", "test")
    as_is, taught = part.get("as_is", ()), part.get("taught", ())
    rows = []
    for arm, losses in first["losses"].items():
        # the training loss of an arm with a teacher is a distance from the teacher, and no loss of the text
        training = "untrained" if arm in as_is else f"{_mean_text(losses['training'])}{TAUGHT * (arm in taught)}"
        rows.append([arm, training, *(_mean_text(losses[name]) for name in names[1:])])
    return ("arm", *names), rows


def _mean_text(losses: Sequence[float | None]) -> str:
    finite = [loss for loss in losses if loss is not None]
    lost = "" if len(finite) == len(losses) else f"{len(losses) - len(finite)} of {len(losses)} not finite"
    return ", ".join(filter(None, (f"{fmean(finite):.4f}" if finite else "", lost)))


def _figures_table(tests: Sequence[Mapping[str, Any]]) -> str:
    columns = [dict(_effect_rows(test["effect"])) for test in tests]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, "") for column in columns)) for name in names]
    return markdown_table(("", *(test["arm"] for test in tests)), rows)


def _effect_rows(effect: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = {
        "margin": effect["margin"],
        "p": effect["p"],
        "p of sign flips": effect["sign_flip_p"],
        "smallest detectable difference": effect["detectable"],
        "deviation of the differences": effect["deviation"],
        "chance of being better": effect["better_share"],
    }
    rows = [(name, f"{value:.4g}") for name, value in facts.items() if value is not None]
    if effect["over_examples"]:
        rows.append(("interval over seeds and test data", "[{1:+.4g}, {2:+.4g}]".format(*effect["over_examples"])))
    return rows


def _comparison_lines(part: Part, comparison: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    arms = list(comparison["values"])
    rows = [
        (seed, *(_with_mark(comparison, arm, index) for arm in arms)) for index, seed in enumerate(comparison["seeds"])
    ]
    lines = [
        f"{part['metric']['name']} on {comparison['name']}{_added(comparison)} (* diverged):",
        "",
        markdown_table(("seed", *arms), rows),
        "",
        *(f"{other} minus {part['control']}: {_difference(part, other, comparison)}.\n" for other in others),
    ]
    if comparison["budgets"]:
        headings = ("budget", *arms, *(f"{other} minus {part['control']}" for other in others))
        lines += ["Held-out loss at equal budgets, before the learning rate falls:", ""]
        lines += [markdown_table(headings, budget_rows(comparison, others)), ""]
    return lines


def _trial_lines(tuning: Mapping[str, Any]) -> list[str]:
    rows = [
        (arm, "" if trial["loss"] is None else f"{trial['loss']:.4f}", ", ".join(map(str, trial["values"])))
        for arm, about in tuning["arms"].items()
        for trial in about["trials"]
    ]
    headings = ("arm", "validation loss", ", ".join(tuning["paths"]))
    return ["Trials:", "", markdown_table(headings, rows), "", _sensitivity_markdown(tuning["arms"]), ""]


def _others(part: Part) -> Iterable[str]:
    for comparison in part["comparisons"][1:]:
        for test in part["tests"]:
            yield f"{test['arm']} on {comparison['name']}: {_difference(part, test['arm'], comparison)}"


def _with_mark(comparison: Mapping[str, Any], arm: str, index: int) -> str:
    value = comparison["values"][arm][index]
    return f"{'not finite' if value is None else f'{value:.5g}'}{'*' if comparison['diverged'][arm][index] else ''}"


def _difference(part: Part, other: str, comparison: Mapping[str, Any]) -> str:
    """Format the mean difference of an arm from the control: -0.031 [-0.042, -0.020], 4 pairs."""
    pairs = zip(*(comparison["values"][arm] for arm in (part["control"], other)), strict=True)
    differences = [treated - control for control, treated in pairs if control is not None and treated is not None]
    if not differences:
        return "no pair of runs with finite values"
    mean, low, high = paired_interval(differences)
    return f"{mean:+.4g} [{low:+.4g}, {high:+.4g}], {len(differences)} pairs"


def _added(comparison: Mapping[str, Any]) -> str:
    added = comparison.get("added")
    if not added:
        return ""
    return f", added {added['date'][:10]} on {', '.join(added['machines'])} with the code `{added['code']}`"


def _matched_rows(arms: Mapping[str, Any]) -> list[list[str]]:
    return [[arm, *(f"{values[name]:,.0f}" for name in MATCHED)] for arm, values in arms.items()]


def _matched_markdown(arms: Mapping[str, Any]) -> str:
    rows = [[*row, values["solved"]] for row, values in zip(_matched_rows(arms), arms.values(), strict=True)]
    return markdown_table(("arm", *(name.replace("_", " ") for name in MATCHED), "solved"), rows)


def _sensitivity_markdown(arms: Mapping[str, Any]) -> str:
    rows = [
        (
            arm,
            *("" if about[name] is None else f"{about[name]:.4f}" for name in ("at_control", "sensitivity")),
            "{} of {} [{:.0%}, {:.0%}]".format(about["failed"], about["total"], *about["failed_interval"]),
        )
        for arm, about in arms.items()
    ]
    return markdown_table(("arm", "at the control's best", "sensitivity", "ended near a guess"), rows)
