"""`python -m tests.mutants [WORD ...]`: plant each bug in a copy of the checkout and run the tests near it.

Prints a line for each, then what survived; exits 1 where more than `ALLOWED` did. With words, only the bugs whose file
or code contains one of them are planted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutants.planted import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
ALLOWED = 3
TIMEOUT = 900  # seconds for the tests of one bug; a bug that makes them hang is noticed, too


def main(words: list[str]) -> int:
    """Plant the bugs, as many at once as there are processors."""
    mutants = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.before}" for word in words)]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copies.put(copy_checkout(Path(folder) / str(number)))
        intact = sorted({m.tests for m in mutants})
        broken = [
            tests
            for tests, ok in zip(intact, pool.map(lambda t: pass_unchanged(t, copies), intact), strict=True)
            if not ok
        ]
        survivors = [
            m
            for m, killed in zip(mutants, pool.map(lambda m: is_killed(m, copies), mutants), strict=True)
            if not killed
        ]
    print(f"{len(mutants)} planted, {len(survivors)} survived")
    for mutant in survivors:
        print(f"  {mutant.file}: {mutant.before!r} -> {mutant.after!r}")
    return int(bool(broken) or len(survivors) > ALLOWED)


def copy_checkout(folder: Path) -> Path:
    """The files that git knows, beside a link to the shared data, which stands beside the checkout."""
    copy = folder / "checkout"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return copy


def pass_unchanged(tests: tuple[str, ...], copies: "Queue[Path]") -> bool:
    """Whether the tests pass without any bug, as they must for their failing to mean something."""
    copy = copies.get()
    try:
        intact = passes(copy, tests)
    finally:
        copies.put(copy)
    if not intact:
        print(f"fail without any bug: {' '.join(tests)}", flush=True)
    return intact


def is_killed(mutant: Mutant, copies: "Queue[Path]") -> bool:
    """Whether a test fails, hangs or cannot be collected once the bug is planted."""
    copy = copies.get()
    file = copy / "archetype" / mutant.file
    intact = file.read_text()
    try:
        file.write_text(planted(mutant, intact))
        killed = not passes(copy, mutant.tests)
    finally:
        file.write_text(intact)
        copies.put(copy)
    print(f"{'killed  ' if killed else 'SURVIVED'} {mutant.file}: {mutant.before.strip().splitlines()[0]}", flush=True)
    return killed


def planted(mutant: Mutant, text: str) -> str:
    """The file with the bug.

    Raises:
        ValueError: what it replaces does not stand there once.
    """
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.file}: {mutant.before!r} stands there {text.count(mutant.before)} times")
    return text.replace(mutant.before, mutant.after)


def passes(checkout: Path, tests: tuple[str, ...]) -> bool:
    """Whether these tests pass in a checkout; no bytecode, of which a bug could be one second too young."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in tests),
    ]
    try:
        run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
