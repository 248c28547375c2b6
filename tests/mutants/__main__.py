"""`python -m tests.mutants [WORD ...]`: plant each bug in a copy of the checkout and run the tests near it.

With words, only the bugs whose file or line has one of them; which tests call what is recorded first, for all tests,
which takes as long as they do. What was found out is kept in `build/mutants`:
a run that was cut off continues where it stopped, and after a change only those bugs are planted again whose file or
tests it touched. Exits 1 where fewer than `ENOUGH` of all bugs or `LEAST` of a folder's are noticed, or where a test
fails without any bug.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import TypeVar

from archetype.table import Table
from tests.mutants.bug import PACKAGE, Bug
from tests.mutants.checkout import Checkout
from tests.mutants.drawn import draw_from_folder
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.near import BUDGET, FURTHER, KEPT, failing, further, kept, missing, near, record
from tests.mutants.planted import PLANTED

ENOUGH, LEAST = 0.95, 0.85
DRAWN = 5  # bugs for each folder
RESULTS = KEPT / "results.json"
STARTING = 180  # seconds for a process, the kernels that it compiles included
SLOWER = 4  # times as long as recorded tests may take; a bug that makes them hang is noticed, too
ALONE: dict[str, bool] = {}  # whether a test passes alone
Item = TypeVar("Item")
Result = TypeVar("Result")


class Copies:
    """Copies of the checkout, one for each process that runs at a time.

    Args:
        folder: to make them in.
        count: how many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.pool = ThreadPoolExecutor(count)
        self.free: Queue[Checkout] = Queue()
        for number in range(count):
            self.free.put(Checkout(folder / str(number)))

    def map(self, work: Callable[[Checkout, Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """Do the work for each item in a copy that is free."""

        def do(item: Item) -> Result:
            copy = self.free.get()
            try:
                return work(copy, item)
            finally:
                self.free.put(copy)

        return self.pool.map(do, items)

    def __enter__(self) -> "Copies":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()
        while not self.free.empty():
            self.free.get().close()


def main(words: Sequence[str]) -> int:
    """Plant the bugs, as many at once as there are processors, and print what was noticed by folder."""
    selected = [bug for bug in bugs() if not words or any(word in described(bug) for word in words)]
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Copies(Path(folder), workers()) as copies:
        for _ in copies.map(record, missing()):
            pass
        results = known_results()
        keys = {bug: key(bug) for bug in selected}
        for bug, failure in copies.map(noticed, [bug for bug in selected if keys[bug] not in results]):
            results[keys[bug]] = failure
            RESULTS.write_text(json.dumps(results, indent=0))
            print(f"{'noticed ' if failure else 'SURVIVED'} {described(bug)} ({failure or bug.origin})", flush=True)
    survivors = [bug for bug in selected if results[keys[bug]] is None]
    return int(report(selected, survivors) or bool(failing()))


def folders() -> list[str]:
    """The folders of the package that have code."""
    places = [folder for place in (PACKAGE, PACKAGE / "apps") for folder in sorted(place.iterdir())]
    return [str(folder.relative_to(PACKAGE)) for folder in places if folder.name != "apps" and any(folder.glob("*.py"))]


def bugs() -> list[Bug]:
    """All bugs, folder after folder, without those that change nothing."""
    drawn = [bug for folder in folders() for bug in draw_from_folder(folder, DRAWN)]
    return [bug for bug in sorted([*PLANTED, *drawn]) if (bug.file, bug.change) not in EQUIVALENT]


def described(bug: Bug) -> str:
    """Where a bug is and what it changes."""
    return f"{bug.file}:{bug.line}: {bug.change}"


def workers() -> int:
    """How many processes run at once."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("ARCHETYPE_WORKERS", available))


def noticed(copy: Checkout, bug: Bug) -> tuple[Bug, str | None]:
    """A bug, and the test that fails with it alone, and passes alone without it."""
    for tests, seconds in (([*near(bug)], BUDGET), ([*further(bug)], FURTHER)):
        while tests and (failure := with_bug(copy, bug, tests, seconds)) is not None:
            test = failure.partition(" ")[2]
            if test not in tests or (with_bug(copy, bug, [test], seconds) and passes_alone(copy, test)):
                return bug, failure
            tests.remove(test)
    return bug, None


def with_bug(copy: Checkout, bug: Bug, tests: list[str], seconds: float) -> str | None:
    """The first of some tests that fails while a bug is planted.

    Args:
        seconds: that these tests were recorded to take.
    """
    copy.plant(bug)
    try:
        return copy.run(tests, "-x", timeout=STARTING + SLOWER * seconds)
    finally:
        copy.repair(bug)


def passes_alone(copy: Checkout, test: str) -> bool:
    """Whether a test passes without any bug, and without those that run before it."""
    if test not in ALONE:
        ALONE[test] = copy.run([test], timeout=STARTING + SLOWER * FURTHER) is None
        if not ALONE[test]:
            print(f"fails alone: {test}", flush=True)
    return ALONE[test]


def key(bug: Bug) -> str:
    """What a result belongs to: the file with the bug, and the tests that are run."""
    files = {name.split("::")[0] for name in near(bug)}
    parts = [bug.file, bug.planted(), *near(bug), *sorted(kept(file).name for file in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def known_results() -> dict[str, str | None]:
    """What failed for each bug that was planted before; None for nothing."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def report(selected: list[Bug], survivors: list[Bug]) -> bool:
    """Print what was noticed by folder, and what was not; returns whether it is too little."""
    planted, lost = Counter(bug.folder for bug in selected), Counter(bug.folder for bug in survivors)
    share = {folder: 1 - lost[folder] / count for folder, count in planted.items()}
    share["all"] = 1 - len(survivors) / max(len(selected), 1)
    planted["all"], lost["all"] = len(selected), len(survivors)
    rows = [[name, str(planted[name]), str(planted[name] - lost[name]), f"{part:.0%}"] for name, part in share.items()]
    print(Table(["folder", "planted", "noticed", "share"], rows))
    for bug in survivors:
        print(f"survived: {described(bug)} ({bug.origin})")
    return share["all"] < ENOUGH or min(share.values()) < LEAST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
