"""The outcome of a study as text, Markdown, JSON and a page; and the overview of all claims."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from archetype.errors import one_line
from archetype.io import atomic
from archetype.studies.budgets import budget_rows
from archetype.studies.decisions import NOT_RUN
from archetype.studies.page import (
    MATCHED,
    added_text,
    difference_text,
    effect_rows,
    overview_page,
    study_name,
    study_page,
)
from archetype.studies.store import Store
from archetype.table import Table, quantity

OVERVIEW = "overview"
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
    """Write NAME.md, NAME.json and NAME.html into a folder.

    Args:
        outcome: of a study.
        folder: is created where it is not there.
    """
    atomic.make_folder(folder)
    texts = {"md": markdown(outcome), "json": json.dumps(outcome, indent=2) + "\n", "html": study_page(outcome)}
    files = []
    for ending, text in texts.items():
        atomic.write_bytes(file := folder / f"{slug(outcome)}.{ending}", text.encode())
        files.append(file)
    return files


def write_overview(folder: Path) -> None:
    """Write the overview of all studies that are reported in a folder, claims first, as Markdown, JSON and a page."""
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    outcomes = [report for report in reports if "experiment" in report]
    searches = [
        {"title": report["title"], "candidates": len(report["candidates"]), "date": report["date"],
         "hash": report["hash"], "report": file_name(report["title"])}
        for report in sorted(reports, key=lambda report: str(report.get("title"))) if "candidates" in report
    ]  # fmt: skip
    claims = [outcome for outcome in outcomes if outcome["claim"]]
    others = [outcome for outcome in outcomes if not outcome["claim"]]
    claim_rows = overview_rows(sorted(claims, key=lambda outcome: (outcome["claim"], outcome["mode"])))
    other_rows = overview_rows(sorted(others, key=lambda outcome: (outcome["title"], outcome["mode"])))
    rows = {"claims": claim_rows, "others": other_rows, "searches": searches}
    atomic.write_bytes(folder / f"{OVERVIEW}.md", overview_markdown(claim_rows, other_rows, searches).encode())
    atomic.write_json(folder / f"{OVERVIEW}.json", {"version": 1, "title": "The claims"} | rows)
    atomic.write_bytes(folder / f"{OVERVIEW}.html", overview_page(claim_rows, other_rows, searches).encode())


def surprise(part: dict[str, Any]) -> str:
    """Whether a part came out otherwise than predicted; empty where nothing was."""
    expected = part["expect"].get("verdict", "open")
    if expected == "open" or not any(
        part["verdict"].startswith(word) for word in ("shown", "no difference", "not shown")
    ):
        return OPEN
    return EXPECTED if part["verdict"].startswith(expected) else SURPRISE


def overview_rows(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each study: what the overview shows and nothing more."""
    return [
        {
            "claim": o["claim"], "title": o["title"], "sentence": o["sentence"], "headline": o["headline"],
            "verdict": o["verdict"], "mode": o["mode"], "date": o["date"], "hash": o["hash"], "report": slug(o),
            "processor": o["environment"].get("processor", ""),
            "seconds": sum(part.get("cost", {}).get("seconds", 0.0) for part in o["parts"]),
            "parts": [
                {"id": part["id"], "type": part["type"], "says": part["says"], "verdict": part["verdict"],
                 "reason": part["reason"], "effect": part.get("effect"), "surprise": surprise(part)}
                for part in o["parts"]
            ],
        }
        for o in outcomes
    ]  # fmt: skip


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


def overview_text(outcomes: Sequence[dict[str, Any]]) -> str:
    """One line for each part of each claim, for a terminal."""
    rows = [
        [str(outcome["claim"] or ""), part["id"], part["verdict"], one_line(part["reason"], 100)]
        for outcome in outcomes
        for part in outcome["parts"]
    ]
    return str(Table(("claim", "part", "verdict", ""), rows, 4))


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
    lines += [f"[The same with pictures]({slug(outcome)}.html)", ""]
    parts = sorted(outcome["parts"], key=lambda part: surprise(part) != SURPRISE)
    rows = [(p["id"], p["says"], p["verdict"], p["expect"].get("verdict", "open"), surprise(p)) for p in parts]
    lines += [markdown_table(("part", "says", "verdict", "expected", ""), rows), ""]
    for part in outcome["parts"]:
        lines += _part_lines(part)
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
        lines += ["Trials:", "", markdown_table(headings, rows), ""]
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
    return markdown_table(("arm", *(name.replace("_", " ") for name in MATCHED)), _matched_rows(arms))


def markdown_table(headings: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def overview_markdown(
    claims: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], searches: Sequence[dict[str, Any]] = ()
) -> str:
    """All claims, other studies and searches as Markdown, surprises first."""
    surprises = [(row, part) for row in (*claims, *others) for part in row["parts"] if part["surprise"] == SURPRISE]
    lines = ["# The claims", "", f"{len(claims)} claims; each verdict is for this code at this scale.", ""]
    lines += [f"[The same with effects as pictures]({OVERVIEW}.html)", ""]
    if surprises:
        lines += ["## Otherwise than predicted", ""]
        lines += [f"- {study_name(row)}, {part['id']}: {part['verdict']}. {part['reason']}." for row, part in surprises]
        lines.append("")
    lines.append(_studies_table("claim", claims))
    if others:
        lines += ["", "## Other studies", "", _studies_table("", others)]
    if searches:
        rows = [(f"[{row['title']}]({row['report']}.md)", row["candidates"], row["date"][:10]) for row in searches]
        lines += ["", "## Searches", "", markdown_table(("", "candidates", "date"), rows)]
    return "\n".join([*lines, ""])


def _studies_table(head: str, rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        (row["claim"] or "", f"[{row['title']}]({row['report']}.md)", row["verdict"],
         "; ".join(f"{part['id']}: {part['verdict']}" for part in row["parts"]), f"{row['seconds'] / 60:.1f} min",
         row["date"][:10])
        for row in rows
    ]  # fmt: skip
    return markdown_table((head, "", "verdict", "parts", "cost", "date"), cells)
