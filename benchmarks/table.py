"""Quick measurements of this machine, one row a job and unit; with --before, the rows that became slower or faster.

    python -m benchmarks.table
    git worktree add --detach ../before COMMIT
    python -m benchmarks.table --before ../before --json rows.json

In each round a job (`benchmarks.jobs`) runs in a new process; with --before in one of each checkout, and the order
alternates. The process repeats the job's work for about a second, and the least value counts. The table has the medians
over the rounds, the ratio (median of the rounds' ratios, after / before), and its noise: how far the rounds' ratios are
from it (1.48 times the median distance, by logarithms; for normal noise, their standard deviation).

A row has moved if its ratio differs from 1 by more than 3 %, and 88 % of all pairs of a round before and a round after
differ in the same direction. A job with a row of which 80 % do so runs as many rounds again before it is judged. With 5
rounds, equal checkouts then have a slower row in one of 20 runs of the whole table if the machine is noisy (5 to 10 %
between rounds), and in one of 200 if it is quiet (2 %). Fewer than 5 rounds decide nothing.

The last line lists the rows that moved. The exit status is 1 if a row became slower, or if a job fails in this checkout
and not in the other one. A job that fails in a checkout is absent there, with the last line of its error.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from archetype.machine.environment import environment
from benchmarks.jobs import JOBS, MODELS, Values
from benchmarks.machine import heading

HERE = Path(__file__).resolve().parents[1]
THRESHOLD, SUSPICION, AGREEMENT, MIN_ROUNDS = 0.03, 0.8, 0.88, 5
# `archetype` is that of the checkout in PYTHONPATH, and the jobs are those of this one.
PROCESS = """
import json, sys, archetype
sys.path.insert(0, sys.argv[1])
from benchmarks import jobs
print(json.dumps(jobs.JOBS[sys.argv[2]]() if len(sys.argv) > 2 else jobs.write_models()))
"""


class Comparison(NamedTuple):
    """Ratio of a row, its noise, and "slower", "faster" or nothing."""

    ratio: float
    noise: float
    moved: str


def compare(before: Sequence[float], after: Sequence[float], agreement: float = AGREEMENT) -> Comparison:
    """Compare the rounds of two checkouts by the rule above; `agreement` is the share of pairs that have to agree."""
    ratios = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    ratio, moved = statistics.median(ratios), ""
    if len(ratios) >= MIN_ROUNDS and abs(ratio) > math.log(1 + THRESHOLD):
        direction = 1 if ratio > 0 else -1
        agree = [direction * (new - old) > 0 for old in before for new in after]
        if sum(agree) >= agreement * len(agree):
            moved = "slower" if ratio > 0 else "faster"
    return Comparison(math.exp(ratio), math.expm1(spread(ratios)), moved)


def spread(values: Sequence[float]) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of normal noise."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


@dataclass
class Side:
    """A job in one checkout: in each unit a value for each round, or else the last line of its error."""

    name: str
    checkout: Path
    rounds: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""


def run(checkout: Path, folder: Path, *job: str) -> Values | str:
    """Run a job, or write the models, with the package of a checkout. On failure, return the last line of the error."""
    variables = os.environ | {"PYTHONPATH": str(checkout)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, commands compile every module at each start
    program = [sys.executable, "-c", PROCESS, str(HERE), *job]
    done = subprocess.run(program, env=variables, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    values: Values = json.loads(done.stdout.splitlines()[-1])
    return values


def measure(sides: Sequence[Side], rounds: int, once: Callable[[Path], Values | str]) -> dict[str, Comparison]:
    """Run the rounds of a job, and as many again if a row may have moved. Return the comparison in each unit."""
    for number in range(2 * rounds):
        if number == rounds and not any(row.moved for row in comparisons(sides, SUSPICION).values()):
            break
        for side in sides[:: -1 if number % 2 else 1]:
            if side.error:
                continue
            values = once(side.checkout)
            if isinstance(values, str):
                side.rounds, side.error = {}, values
            else:
                for unit, value in values.items():
                    side.rounds.setdefault(unit, []).append(value)
    return comparisons(sides)


def comparisons(sides: Sequence[Side], agreement: float = AGREEMENT) -> dict[str, Comparison]:
    """Compare two sides in each unit; empty if there is only one, or if the job failed."""
    before, after = sides[0].rounds, sides[-1].rounds
    units = [unit for unit in before if unit in after and len(sides) > 1]
    return {unit: compare(before[unit], after[unit], agreement) for unit in units}


def text_of(job: str, sides: Sequence[Side], compared: dict[str, Comparison]) -> str:
    """Return the lines of a job in the table."""
    lines = []
    for unit in max((side.rounds for side in sides), key=len):
        columns = [side.rounds.get(unit) for side in sides]
        cells = "".join(f"{statistics.median(values):>11,.4g}" if values else f"{'absent':>11}" for values in columns)
        if unit in compared:
            ratio, noise, moved = compared[unit]
            cells += f"{ratio:>9.3f}{noise:>8.1%}  {moved}"
        elif len(sides) == 1 and (values := columns[0]):
            cells += f"{spread(values) / statistics.median(values):>8.1%}"
        lines.append(f"{job:<36}{unit:>8}{cells}".rstrip())
    return "\n".join([*lines, *(f"{job}: absent {side.name}: {side.error}" for side in sides if side.error)])


def conclusion(moved: dict[str, list[str]], rounds: int) -> str:
    """Return the last line: rows by how they moved."""
    listed = "; ".join(f"{how}: {', '.join(rows)}" for how, rows in moved.items() if rows)
    return listed or ("no row moved" if rounds >= MIN_ROUNDS else f"fewer than {MIN_ROUNDS} rounds decide nothing")


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, and whether files were changed."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "no commit"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, to compare this one with")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="jobs whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds of all rows")
    chosen = parser.parse_args()
    jobs = [job for job in JOBS if any(text in job for text in chosen.only)]
    if not jobs or chosen.rounds < 1:
        parser.error("--rounds: must be at least 1" if jobs else f"--only: the jobs are {'; '.join(JOBS)}")
    checkouts = {"before": chosen.before.resolve(), "after": HERE} if chosen.before else {"here": HERE}
    if not all((checkout / "archetype" / "__init__.py").is_file() for checkout in checkouts.values()):
        parser.error(f"--before: {chosen.before} is not a checkout of Archetype")  # the installed one would be measured
    commits = {name: commit(checkout) for name, checkout in checkouts.items()}
    print(heading(f"python -m benchmarks.table --rounds {chosen.rounds}"), end="")
    commits_line = ", ".join(f"{name} {text}" for name, text in commits.items())
    print(f"{commits_line}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    columns = [*checkouts, *(["ratio"] if chosen.before else [])]
    print(f"{'':<36}{'unit':>8}" + "".join(f"{name:>{9 if name == 'ratio' else 11}}" for name in columns) + "   noise")
    records: list[dict[str, object]] = []
    moved: dict[str, list[str]] = {"slower": [], "faster": [], "absent after": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if any(MODELS.keys() & set(JOBS[job].args) for job in jobs) and (error := run(HERE, folder)):
            sys.exit(f"the models that jobs read cannot be written: {error}")
        for job in jobs:
            sides = [Side(name, checkout) for name, checkout in checkouts.items()]
            compared = measure(sides, chosen.rounds, lambda checkout: run(checkout, folder, job))  # noqa: B023
            print(text_of(job, sides, compared), flush=True)
            for unit, row in compared.items():
                if row.moved:
                    moved[row.moved].append(f"{job} ({unit}, {row.ratio:.2f})")
            if sides[-1].error and not sides[0].error:
                moved["absent after"].append(job)
            record = {side.name: side.error or side.rounds for side in sides}
            records.append({"job": job, **record, "compared": {unit: row._asdict() for unit, row in compared.items()}})
    if chosen.json:
        chosen.json.write_text(json.dumps(environment() | {"commits": commits, "jobs": records}, indent=1) + "\n")
    if chosen.before:
        print(conclusion(moved, chosen.rounds))
    sys.exit(bool(moved["slower"] or moved["absent after"]))


if __name__ == "__main__":
    main()
