"""Overview of all reports in a folder, with surprises first."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype.errors import one_line
from archetype.io import atomic
from archetype.studies.markdown import markdown_table
from archetype.studies.reading import answer_of, finding_of
from archetype.studies.report import SURPRISE, file_name, slug, surprise
from archetype.table import Table

OVERVIEW = "overview"


def write_overview(folder: Path) -> None:
    # the folder holds reports of studies and of searches, and this overview
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    outcomes = [report for report in reports if "experiment" in report]
    searches = [
        {
            "title": report["title"],
            "candidates": len(report["candidates"]),
            "date": report["date"],
            "hash": report["hash"],
            "report": file_name(report["title"]),
        }
        for report in sorted(reports, key=lambda report: str(report.get("title")))
        if "candidates" in report
    ]
    claims = [outcome for outcome in outcomes if outcome["claim"]]
    others = [outcome for outcome in outcomes if not outcome["claim"]]
    claim_rows = overview_rows(sorted(claims, key=lambda outcome: (outcome["claim"], outcome["mode"])))
    other_rows = overview_rows(sorted(others, key=lambda outcome: (outcome["title"], outcome["mode"])))
    rows = {"claims": claim_rows, "others": other_rows, "searches": searches}
    atomic.write_bytes(folder / f"{OVERVIEW}.md", overview_markdown(claim_rows, other_rows, searches).encode())
    atomic.write_json(folder / f"{OVERVIEW}.json", {"version": 1, "title": "The claims"} | rows)


def overview_rows(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "claim": o["claim"], "title": o["title"], "sentence": o["sentence"], "headline": o["headline"],
            "verdict": o["verdict"], "mode": o["mode"], "date": o["date"], "hash": o["hash"], "report": slug(o),
            "answer": answer_of(o), "processor": o["environment"].get("processor", ""),
            "seconds": sum(part.get("cost", {}).get("seconds", 0.0) for part in o["parts"]),
            "parts": [
                {"id": part["id"], "type": part["type"], "says": part["says"], "verdict": part["verdict"],
                 "finding": finding_of(o, part), "reason": part["reason"], "effect": part.get("effect"),
                 "surprise": surprise(part)}
                for part in o["parts"]
            ],
        }
        for o in outcomes
    ]  # fmt: skip


def overview_text(outcomes: Sequence[dict[str, Any]]) -> str:
    rows = [
        [str(outcome["claim"] or ""), part["id"], part["verdict"], one_line(part["reason"], 100)]
        for outcome in outcomes
        for part in outcome["parts"]
    ]
    return str(Table(("claim", "part", "verdict", ""), rows, 4))


def overview_markdown(
    claims: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], searches: Sequence[dict[str, Any]] = ()
) -> str:
    surprises = [(row, part) for row in (*claims, *others) for part in row["parts"] if part["surprise"] == SURPRISE]
    lines = ["# The claims", "", f"{len(claims)} claims; each verdict is for this code at this scale.", ""]
    # readings of claims come first, the verdicts after them
    if answers := [row for row in claims if row["answer"]]:
        rows = [(row["claim"], f"[{row['title']}]({row['report']}.md)", row["answer"]) for row in answers]
        lines += ["## Answers to the documents", "", markdown_table(("claim", "", "answer"), rows), ""]
    if surprises:
        lines += ["## Otherwise than predicted", ""]
        lines += [f"- {study_name(row)}, {part['id']}: {part['verdict']}. {part['reason']}." for row, part in surprises]
        lines.append("")
    lines += ["## Verdicts by the rules that were fixed before the runs", ""] if answers else []
    lines.append(_studies_table("claim", claims))
    if others:
        lines += ["", "## Other studies", "", _studies_table("", others)]
    if searches:
        rows = [(f"[{row['title']}]({row['report']}.md)", row["candidates"], row["date"][:10]) for row in searches]
        lines += ["", "## Searches", "", markdown_table(("", "candidates", "date"), rows)]
    return "\n".join([*lines, ""])


def _studies_table(head: str, rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        (
            row["claim"] or "",
            f"[{row['title']}]({row['report']}.md)",
            row["verdict"],
            "; ".join(_part_text(part) for part in row["parts"]),
            f"{row['seconds'] / 60:.1f} min",
            row["date"][:10],
        )
        for row in rows
    ]
    return markdown_table((head, "", "verdict", "parts", "cost", "date"), cells)


def _part_text(part: Mapping[str, Any]) -> str:
    return f"{part['id']}: {', '.join(filter(None, (part['finding'], part['verdict'])))}"


def study_name(row: Mapping[str, Any]) -> str:
    return f"Claim {row['claim']}" if row["claim"] else str(row["title"])
