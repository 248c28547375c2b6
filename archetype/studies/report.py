"""Write the outcome of a study as text, Markdown with charts, HTML and JSON."""

import json
import re
from pathlib import Path
from typing import Any

from archetype.io import atomic
from archetype.studies.evidence import NO_DIFFERENCE, NOT_RUN
from archetype.studies.markdown import html_page, markdown_table
from archetype.studies.pictures import pictures_of
from archetype.studies.reading import finding_of, reading_lines
from archetype.studies.store import Store
from archetype.studies.times import promise_text, times_table, times_text
from archetype.studies.trained_report import matched_table, trained_lines, trained_text
from archetype.table import Table, quantity

SURPRISE, EXPECTED, OPEN = "surprise", "as expected", ""


def slug(outcome: dict[str, Any]) -> str:
    name = f"claim-{outcome['claim']:02d}" if outcome["claim"] else file_name(outcome["title"])
    return name if outcome["mode"] in ("full", "extended") else f"{name}-{outcome['mode']}"


def file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


def keep_outcome(outcome: dict[str, Any], store: Store) -> Path:
    # the web UI's list of reports reads this folder
    folder = store.folder / "outcomes"
    atomic.make_folder(folder)
    atomic.write_json(file := folder / f"{slug(outcome)}.json", outcome)
    return file


def write_reports(outcome: dict[str, Any], folder: Path) -> list[Path]:
    """Write NAME.md, NAME.html, NAME.json, and a NAME-PART-*.svg for each chart, into a new or existing folder."""
    atomic.make_folder(folder)
    name = slug(outcome)
    text = markdown(outcome)
    pictures = {
        f"{name}-{part['id']}-{picture}.svg": svg
        for part in outcome["parts"]
        for picture, svg in pictures_of(part).items()
    }
    files = {f"{name}.md": text, f"{name}.json": json.dumps(outcome, indent=2) + "\n"} | pictures
    # the page contains its pictures, so that it can be sent as one file
    files[f"{name}.html"] = html_page(outcome["title"], text, pictures)
    for file, text in files.items():
        atomic.write_bytes(folder / file, text.encode())
    return [folder / file for file in files]


def surprise(part: dict[str, Any]) -> str:
    """Return "surprise" or "as expected" for a part's verdict; empty without a prediction or verdict."""
    expected = part["expect"].get("verdict", "open")
    if expected == "open" or not any(
        part["verdict"].startswith(word) for word in ("shown", "no difference", "not shown")
    ):
        return OPEN
    is_partial = part["verdict"].startswith("shown in part")
    # "no difference shown" also fulfills the prediction "not shown"
    is_expected = part["verdict"].startswith(expected) and not is_partial
    return EXPECTED if is_expected or (expected, part["verdict"]) == ("not shown", NO_DIFFERENCE) else SURPRISE


def summary_text(outcome: dict[str, Any]) -> str:
    name = f"claim {outcome['claim']}: " if outcome["claim"] else ""
    rows = [[part["id"], part["verdict"], part["reason"]] for part in outcome["parts"]]
    lines = [f"{name}{outcome['title']}: {outcome['verdict']}", str(Table(("part", "verdict", ""), rows, 3))]
    for part in outcome["parts"]:
        if part.get("effect"):
            lines += ["", f"{part['id']}:", trained_text(part)]
    if text := times_text(outcome.get("times", {})):
        lines += ["", text]
    return "\n".join([*lines, "", f"hash {outcome['hash']}, mode {outcome['mode']}"])


def plan_text(plan: dict[str, Any]) -> str:
    lines = [f"hash {plan['hash']}, mode {plan['mode']}", *filter(None, (plan["without_verdict"],))]
    for name, part in plan["parts"].items():
        time = "time not measured (GPU)"
        if part["minutes"] is not None:
            time = f"{part['minutes']:.1f} processor minutes"
            time += ", more if a grid is extended" if part["trials"] else ""
        lines.append(
            f"\n{name}: {part['runs']} runs ({part['trials']} of them trials), {quantity(part['tokens'])}tokens, {time}"
        )
        lines.append(matched_table(part["arms"]))
        if part["detectable"]:
            lines.append(
                f"detects differences of {part['detectable']:.2%} or more, at a standard deviation of "
                f"{part['deviation']:.2%}"
            )
        lines += [f"{arm}: {values['solved']}" for arm, values in part["arms"].items() if values["solved"]]
    lines += [f"{name}: check {check}, no runs; time unknown" for name, check in plan["checks"].items()]
    if plan["time"]["parts"].keys() > {"start-up"}:
        lines += ["", promise_text(plan["time"])]
    if plan["calibration"]:
        lines.append(f"`archetype compare calibrate`, once on this machine: {promise_text(plan['calibration'])}")
    return "\n".join(lines)


def markdown(outcome: dict[str, Any]) -> str:
    name = f"Claim {outcome['claim']}: " if outcome["claim"] else ""
    machine = outcome["environment"]
    lines = [f"# {name}{outcome['title']}", ""]
    read = reading_lines(outcome)
    lines += [*read, "## As it was fixed before the runs", ""] if read else []
    lines += [f"**{outcome['verdict']}**", ""]
    lines += [f"> {outcome['sentence']}", ""] if outcome["sentence"] else []
    headline = f"Expected: {outcome['headline']}" if read else outcome["headline"]
    lines += [headline, ""] if outcome["headline"] else []
    parts = sorted(outcome["parts"], key=lambda part: surprise(part) != SURPRISE)
    rows = [
        (p["id"], p["says"], finding_of(outcome, p), p["verdict"], p["expect"].get("verdict", "open"), surprise(p))
        for p in parts
    ]
    lines += [markdown_table(("part", "says", "finding", "verdict", "expected", ""), rows), ""]
    for part in outcome["parts"]:
        lines += _part_lines(part)
        pictures = pictures_of(part)
        lines += [f"![{part['id']}: {name}]({slug(outcome)}-{part['id']}-{name}.svg)" for name in pictures]
        lines += [""] if pictures else []
    seconds = sum(part.get("cost", {}).get("seconds", 0.0) for part in outcome["parts"])
    if table := times_table(outcome.get("times", {})):
        lines += ["## Time", "", markdown_table(*table), ""]
    lines += [
        "## Record",
        "",
        f"Mode {outcome['mode']}; {seconds / 60:.1f} minutes of one core; {outcome['date']}; "
        f"{machine.get('processor', '')}; "
        f"torch {machine.get('torch', '')}, Python {machine.get('python', '')}; "
        f"hash of the experiment `{outcome['hash']}`, of the code `{outcome['code']}`.",
        "",
    ]
    return "\n".join(lines)


def _expected(part: dict[str, Any]) -> str:
    """Format the predicted outcome of a part, such as: shown, by -3.0% to -1.0% (a paper)"""
    expect = part["expect"]
    effect = ", by {:+.1%} to {:+.1%}".format(*expect["effect"]) if expect.get("effect") else ""
    return f"{expect.get('verdict', 'open')}{effect}{f' ({source})' if (source := expect.get('source')) else ''}"


def _part_lines(part: dict[str, Any]) -> list[str]:
    lines = [f"## {part['id']}", "", part["says"] + ".", "", f"**{part['verdict']}**: {part['reason']}.", ""]
    if part["expect"].get("source") or part["expect"].get("effect"):
        lines += [f"Expected: {_expected(part)}.", ""]
    if part.get("values"):
        lines += [markdown_table(("value", ""), [(name, f"{value:.6g}") for name, value in part["values"].items()]), ""]
    for control in part.get("controls", ()):
        lines += [f"Control: {control['name']}: {control['error']:.3g}, must exceed {control['must_exceed']:.3g}.", ""]
    if part["verdict"] == NOT_RUN:
        return lines
    if part["type"] == "trained":
        lines += trained_lines(part)
    if part["type"] == "scaling_law":
        rows = [
            (p["size"], f"{p['parameters']:,.0f}", f"{p['tokens']:,.0f}", f"{p['loss']:.4f}") for p in part["fitted"]
        ]
        rows += [
            (f"{p['size']} (held out)", f"{p['parameters']:,.0f}", f"{p['tokens']:,.0f}", f"{p['loss']:.4f}")
            for p in part["seen"]
        ]
        lines += [markdown_table(("size", "parameters", "tokens", "loss"), rows), ""]
        figures = [
            (n, f"{part['law'][n]:.4g}", f"{low:.4g} to {high:.4g}") for n, (low, high) in part["intervals"].items()
        ]
        lines += [markdown_table(("number", "", "interval of 95 %"), figures), ""]
        predicted = [
            (
                f"{p['parameters']:,.0f}",
                f"{p['tokens']:,.0f}",
                f"{p['loss']:.4f} [{p['low']:.4f}, {p['high']:.4f}]",
                f"{seen['loss']:.4f}",
            )
            for p, seen in zip(part["predicted"], part["seen"], strict=True)
        ]
        lines += [f"Predicted on {part['predicted_on']}:", ""]
        lines += [markdown_table(("parameters", "tokens", "predicted", "came"), predicted), ""]
    if part.get("limits"):
        lines += [f"Limits: {'; '.join(part['limits'])}. In this code, at this scale.", ""]
    return lines
