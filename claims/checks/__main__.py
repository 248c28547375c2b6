"""Run checks and print their outcomes as a Markdown page: `python -m claims.checks --full`."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from archetype.machine.environment import environment
from archetype.studies.registry import Check, load_checks, run

TITLE = """\
# What is settled without training

Identities, arithmetic, simulations and models as they are initialized: the parts of the 25 claims that a check settles.
Tolerances were fixed before: 1e-10 of the size in float64, 1e-5 in float32, and every mistake made on purpose must be
seen, or the check is void. A `no` is an outcome like any other; the sentence says what holds instead. A check is a
function in `claims/checks`. This page is what `python -m claims.checks --full` prints."""
CLAIMS = Path(__file__).parents[1]
HEADINGS = ("claim", "part", "check", "holds", "what was seen", "mistakes made on purpose, seen", "seconds")


def measured(check: Check, full: bool) -> dict[str, Any]:
    """Return the outcome of a check as plain data, with its CPU seconds."""
    started = time.process_time()
    outcome = asdict(run(check.name, quick=not full))
    return {"check": check.name, "seconds": time.process_time() - started, "full": full} | outcome


def recorded(file: Path | None) -> dict[str, dict[str, Any]]:
    """Return the outcomes that an earlier call recorded, by the check's name."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    return {entry["check"]: entry for entry in map(json.loads, lines)}


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return all outcomes in the order of the claims as Markdown, with the machine and versions."""
    checks = load_checks(CLAIMS)
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---:|---|---|---|---|---|---:|"]
    for name, check in checks.items():
        if (result := results.get(name)) is not None:
            controls = "; ".join(
                f"{control['name']}: {control['error']:.2g} > {control['must_exceed']:.2g}"
                for control in result["controls"]
            )
            holds = "yes" if result["holds"] else "**no**"
            cells = (check.claim, check.part, f"`{name}`", holds, result["sentence"], controls or "none")
            escaped = (str(cell).replace("|", "\\|") for cell in cells)
            lines.append("| " + " | ".join(escaped) + f" | {result['seconds']:.1f} |")
    versions = environment()
    about = ", ".join(f"{key} {versions[key]}" for key in ("processor", "archetype", "torch", "python", "date"))
    return "\n".join([TITLE, "", *lines, "", f"Seconds of one thread; {about}."])


def main() -> None:
    """Run the selected checks that the record lacks, and print the page."""
    parser = argparse.ArgumentParser(prog="python -m claims.checks", description=__doc__)
    parser.add_argument("checks", nargs="*", help="names, or their beginnings (all but those of time)")
    parser.add_argument("--full", action="store_true", help="in the full size")
    parser.add_argument("--timing", action="store_true", help="also the checks of time, on a quiet machine")
    parser.add_argument("--record", type=Path, help="a file of JSON lines to add to, and to go on from")
    options = parser.parse_args()
    # as in studies: sums in the same order on every machine
    torch.set_num_threads(1)
    results = recorded(options.record)
    for name, check in load_checks(CLAIMS).items():
        chosen = not options.checks or name.startswith(tuple(options.checks))
        if not chosen or name in results or (check.kind == "timing" and not options.timing):
            continue
        results[name] = measured(check, options.full)
        print(f"{name}: {results[name]['holds']}, {results[name]['seconds']:.1f} s", file=sys.stderr)
        if options.record is not None:
            with options.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[name]) + "\n")
    print(page(results))


if __name__ == "__main__":
    main()
