"""The outcome of a study as text for a terminal, and as Markdown with pictures beside its JSON."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype.io import atomic
from archetype.studies.budgets import budget_rows
from archetype.studies.decisions import NOT_RUN
from archetype.studies.pictures import pictures_of
from archetype.studies.statistics import paired_interval
from archetype.studies.store import Store
from archetype.table import Table, quantity

MATCHED = ("parameters", "non_embedding", "active", "flops_per_token", "state_bytes", "tokens")
SURPRISE, EXPECTED, OPEN = "surprise", "as expected", ""


def slug(outcome: dict[str, Any]) -> str:
    """The name of a study's files."""
    name = f"claim-{outcome['claim']:02d}" if outcome["claim"] else file_name(outcome["title"])
    return name if outcome["mode"] in ("full", "extended") else f"{name}-{outcome['mode']}"


def file_name(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


def keep_outcome(outcome: dict[str, Any], store: Store) -> Path:
    """Keep an outcome beside the runs, where the page's list of reports looks."""
    folder = store.folder / "outcomes"
    atomic.make_folder(folder)
    atomic.write_json(file := folder / f"{slug(outcome)}.json", outcome)
    return file


def write_reports(outcome: dict[str, Any], folder: Path) -> list[Path]:
    """Write NAME.md and NAME.json into a folder, and NAME-PART-*.svg for each picture.

    Args:
        outcome: of a study.
        folder: is created where it is not there.
    """
    atomic.make_folder(folder)
    name = slug(outcome)
    texts = {f"{name}.md": markdown(outcome), f"{name}.json": json.dumps(outcome, indent=2) + "\n"}
    for part in outcome["parts"]:
        texts |= {f"{name}-{part['id']}-{picture}.svg": svg for picture, svg in pictures_of(part).items()}
    for file, text in texts.items():
        atomic.write_bytes(folder / file, text.encode())
    return [folder / file for file in texts]


def surprise(part: dict[str, Any]) -> str:
    """Whether a part came out otherwise than predicted; empty where nothing was."""
    expected = part["expect"].get("verdict", "open")
    if expected == "open" or not any(
        part["verdict"].startswith(word) for word in ("shown", "no difference", "not shown")
    ):
        return OPEN
    return EXPECTED if part["verdict"].startswith(expected) else SURPRISE


def summary_text(outcome: dict[str, Any]) -> str:
    """The verdicts, for a terminal."""
    name = f"claim {outcome['claim']}: " if outcome["claim"] else ""
    rows = [[part["id"], part["verdict"], part["reason"]] for part in outcome["parts"]]
    lines = [f"{name}{outcome['title']}: {outcome['verdict']}", str(Table(("part", "verdict", ""), rows, 3))]
    for part in outcome["parts"]:
        if part.get("effect"):
            lines.append(f"{part['id']}: {_effect(part)}")
            lines += [f"{part['id']} on {one['name']}: {difference_text(part, one)}" for one in part["comparisons"][1:]]
    return "\n".join([*lines, f"hash {outcome['hash']}, mode {outcome['mode']}"])


def plan_text(plan: dict[str, Any], workers: int) -> str:
    """Runs, tokens, minutes and matched quantities, for a terminal."""
    lines = [f"hash {plan['hash']}, mode {plan['mode']}"]
    for name, part in plan["parts"].items():
        minutes = part["minutes"] / workers
        lines.append(
            f"\n{name}: {part['runs']} runs ({part['trials']} of them trials), {quantity(part['tokens'])}tokens, "
            f"{minutes:.1f} minutes with {workers} {'worker' if workers == 1 else 'workers'}"
        )
        lines.append(_matched_table(part["arms"]))
        if part["detectable"]:
            lines.append(
                f"sees differences from {part['detectable']:.2%} on, at a deviation of {part['deviation']:.2%}"
            )
        lines += [f"{arm}: {values['solved']}" for arm, values in part["arms"].items() if values["solved"]]
    lines += [f"{name}: the check {check}, no runs" for name, check in plan["checks"].items()]
    return "\n".join(lines)


def markdown(outcome: dict[str, Any]) -> str:
    """A study as Markdown."""
    name = f"Claim {outcome['claim']}: " if outcome["claim"] else ""
    machine = outcome["environment"]
    lines = [f"# {name}{outcome['title']}", "", f"**{outcome['verdict']}**", ""]
    lines += [f"> {outcome['sentence']}", ""] if outcome["sentence"] else []
    lines += [outcome["headline"], ""] if outcome["headline"] else []
    parts = sorted(outcome["parts"], key=lambda part: surprise(part) != SURPRISE)
    rows = [(p["id"], p["says"], p["verdict"], p["expect"].get("verdict", "open"), surprise(p)) for p in parts]
    lines += [markdown_table(("part", "says", "verdict", "expected", ""), rows), ""]
    for part in outcome["parts"]:
        lines += _part_lines(part)
        pictures = pictures_of(part)
        lines += [f"![{part['id']}: {name}]({slug(outcome)}-{part['id']}-{name}.svg)" for name in pictures]
        lines += [""] if pictures else []
    seconds = sum(part.get("cost", {}).get("seconds", 0.0) for part in outcome["parts"])
    lines += [
        "## Record", "",
        f"Mode {outcome['mode']}; {seconds / 60:.1f} minutes of one core; {outcome['date']}; "
        f"{machine.get('processor', '')}; "
        f"torch {machine.get('torch', '')}, Python {machine.get('python', '')}; "
        f"hash of the experiment `{outcome['hash']}`, of the code `{outcome['code']}`.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _part_lines(part: dict[str, Any]) -> list[str]:
    lines = [f"## {part['id']}", "", part["says"] + ".", "", f"**{part['verdict']}**: {part['reason']}.", ""]
    if part["expect"].get("source"):
        lines += [f"Expected: {part['expect'].get('verdict', 'open')} ({part['expect']['source']}).", ""]
    if part.get("values"):
        lines += [markdown_table(("value", ""), [(name, f"{value:.6g}") for name, value in part["values"].items()]), ""]
    for control in part.get("controls", ()):
        lines += [f"Control: {control['name']}: {control['error']:.3g}, must exceed {control['must_exceed']:.3g}.", ""]
    if part["verdict"] == NOT_RUN:
        return lines
    if part["type"] == "trained":
        lines += _trained_lines(part)
    if part["type"] == "scaling_law":
        rows = [
            (p["size"], f"{p['parameters']:,.0f}", f"{p['tokens']:,.0f}", f"{p['loss']:.4f}") for p in part["fitted"]
        ]
        rows += [
            (f"{p['size']} (held out)", f"{p['parameters']:,.0f}", f"{p['tokens']:,.0f}", f"{p['loss']:.4f}")
            for p in part["seen"]
        ]
        lines += [markdown_table(("size", "parameters", "tokens", "loss"), rows), ""]
        numbers = [
            (n, f"{part['law'][n]:.4g}", f"{low:.4g} to {high:.4g}") for n, (low, high) in part["intervals"].items()
        ]
        lines += [markdown_table(("number", "", "interval of 95 %"), numbers), ""]
        predicted = [
            (f"{p['parameters']:,.0f}", f"{p['tokens']:,.0f}", f"{p['loss']:.4f} [{p['low']:.4f}, {p['high']:.4f}]",
             f"{seen['loss']:.4f}")
            for p, seen in zip(part["predicted"], part["seen"], strict=True)
        ]  # fmt: skip
        lines += [f"Predicted on {part['predicted_on']}:", ""]
        lines += [markdown_table(("parameters", "tokens", "predicted", "came"), predicted), ""]
    if part.get("limits"):
        lines += [f"Limits: {'; '.join(part['limits'])}. In this code, at this scale.", ""]
    return lines


def _trained_lines(part: dict[str, Any]) -> list[str]:
    effect = part["effect"]
    lines = [f"{part['arm']} against {part['control']}: {_effect(part)}", ""]
    lines += [markdown_table(("", ""), effect_rows(part)), ""]
    lines += [_matched_markdown(part["arms"]), ""]
    for comparison in part["comparisons"]:
        arms = list(comparison["values"])
        rows = [
            (seed, *(_with_mark(comparison, arm, number) for arm in arms))
            for number, seed in enumerate(comparison["seeds"])
        ]
        lines += [
            f"{part['metric']['name']} on {comparison['name']}{added_text(comparison)} (* diverged):",
            "",
            markdown_table(("seed", *arms), rows),
            "",
            f"{part['arm']} less {part['control']}: {difference_text(part, comparison)}.",
            "",
        ]
        if comparison["budgets"]:
            lines += ["Held-out loss at equal budgets, before the learning rate falls:", ""]
            headings = ("budget", *arms, f"{part['arm']} less {part['control']}")
            lines += [markdown_table(headings, budget_rows(comparison)), ""]
    if part["tuning"]["arms"]:
        rows = [
            (
                arm,
                *("" if one is None else f"{one:.4f}" for one in (trial["loss"],)),
                ", ".join(map(str, trial["values"])),
            )
            for arm, about in part["tuning"]["arms"].items()
            for trial in about["trials"]
        ]
        headings = ("arm", "validation loss", ", ".join(part["tuning"]["paths"]))
        lines += ["Trials:", "", markdown_table(headings, rows), "", _sensitivity_markdown(part["tuning"]["arms"]), ""]
    lines += [f"What would have changed this verdict: {effect['would_change']}.", ""] if effect["would_change"] else []
    return lines


def _with_mark(comparison: dict[str, Any], arm: str, number: int) -> str:
    return f"{comparison['values'][arm][number]:.5g}{'*' if comparison['diverged'][arm][number] else ''}"


def _effect(part: dict[str, Any]) -> str:
    """-0.031 [-0.042, -0.020], 1.9 % of the control"""
    effect = part["effect"]
    mean, low, high = (("without end" if value is None else f"{value:+.4g}") for value in effect["effect"])
    share = (
        ""
        if effect.get("share") is None or part["decide"]["kind"] in ("slope", "within")
        else f", {effect['share']:+.2%} of the control"
    )
    return f"{mean} [{low}, {high}]{share}"


def _matched_rows(arms: dict[str, Any]) -> list[list[str]]:
    return [[arm, *(f"{values[name]:,.0f}" for name in MATCHED)] for arm, values in arms.items()]


def _matched_table(arms: dict[str, Any]) -> str:
    return str(Table(("arm", *(name.replace("_", " ") for name in MATCHED)), _matched_rows(arms)))


def _matched_markdown(arms: dict[str, Any]) -> str:
    rows = [[*row, values["solved"]] for row, values in zip(_matched_rows(arms), arms.values(), strict=True)]
    return markdown_table(("arm", *(name.replace("_", " ") for name in MATCHED), "solved"), rows)


def _sensitivity_markdown(arms: dict[str, Any]) -> str:
    rows = [
        (arm, *("" if about[name] is None else f"{about[name]:.4f}" for name in ("at_control", "sensitivity")),
         "{} of {} [{:.0%}, {:.0%}]".format(about["failed"], about["total"], *about["failed_interval"]))
        for arm, about in arms.items()
    ]  # fmt: skip
    return markdown_table(("arm", "at the control's best", "sensitivity", "ended near a guess"), rows)


def effect_rows(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and number of each figure of a trained part's effect."""
    effect = part["effect"]
    facts = {
        "margin": effect["margin"], "p": effect["p"], "p of sign flips": effect["sign_flip_p"],
        "p after Holm": effect["adjusted_p"], "smallest detectable difference": effect["detectable"],
        "deviation of the differences": effect["deviation"],
        f"chance that {part['arm']} is better": effect["better_share"],
    }  # fmt: skip
    rows = [(name, f"{value:.4g}") for name, value in facts.items() if value is not None]
    if effect["over_examples"]:
        rows.append(("interval over seeds and test examples", "[{1:+.4g}, {2:+.4g}]".format(*effect["over_examples"])))
    return rows


def difference_text(part: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """The mean difference of a part's two arms on one corpus and size: -0.031 [-0.042, -0.020], 4 pairs."""
    pairs = zip(*(comparison["values"][arm] for arm in (part["control"], part["arm"])), strict=True)
    mean, low, high = paired_interval(differences := [treated - control for control, treated in pairs])
    return f"{mean:+.4g} [{low:+.4g}, {high:+.4g}], {len(differences)} pairs"


def added_text(comparison: Mapping[str, Any]) -> str:
    """Where and when a corpus or size was added to the report; empty where it is one of the first."""
    added = comparison.get("added")
    if not added:
        return ""
    return f", added {added['date'][:10]} on {', '.join(added['machines'])} with the code `{added['code']}`"


def markdown_table(headings: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)
