"""Add the readings written after the runs to the reports: python -m claims.reading [FOLDER].

`reading.yaml` quotes the source documents with file and line, answers each claim, and says for each part whether it
tests the claim. Numbers, verdicts and experiment files, whose hashes were fixed before the runs, do not change.
"""

import json
import sys
from pathlib import Path
from typing import Any

from archetype.io import atomic
from archetype.io.yaml import read_mapping
from archetype.studies.overview import write_overview
from archetype.studies.report import markdown

HERE = Path(__file__).parent
READING = HERE / "reading.yaml"
REPORTS = HERE / "reports"


def readings() -> dict[int, dict[str, Any]]:
    data = read_mapping(READING)
    return {int(number): {"date": data["date"], **reading} for number, reading in data["claims"].items()}


def write_readings(folder: Path = REPORTS) -> None:
    """Add the readings to the JSON and Markdown reports of a folder, and to its overview."""
    by_claim = readings()
    for file in sorted(folder.glob("*.json")):
        outcome = json.loads(file.read_text(encoding="utf-8"))
        if "experiment" not in outcome:
            continue
        if outcome["claim"] in by_claim:
            outcome["reading"] = by_claim[outcome["claim"]]
            atomic.write_bytes(file, (json.dumps(outcome, indent=2) + "\n").encode())
        atomic.write_bytes(file.with_suffix(".md"), markdown(outcome).encode())
    write_overview(folder)


if __name__ == "__main__":
    write_readings(*map(Path, sys.argv[1:]))
