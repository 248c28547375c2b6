"""One command in a process of its own, forked from one that has loaded torch already: sooner than a new one."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

LOADED = [
    "archetype.cli.main", "archetype.cli.progress", "archetype.loading", "archetype.convert.parity",
    "archetype.train.run", "archetype.train.state", "matplotlib.figure", "tests.helpers.forked", "torch",
]  # fmt: skip
STREAMS = (("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("error", os.O_WRONLY | os.O_CREAT))


def run(arguments: list[str], environment: dict[str, str], given: bytes = b"", timeout: float = 120) -> Any:
    """What `archetype ARGUMENTS...` prints in bytes, and its status."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "in").write_bytes(given)
        process = context.Process(target=_command, args=(arguments, environment, place))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise TimeoutExpired(arguments, timeout)
        out, error = ((place / name).read_bytes() for name in ("out", "error"))
        return CompletedProcess(["archetype", *arguments], process.exitcode or 0, out, error)


def _command(arguments: list[str], environment: dict[str, str], place: Path) -> None:
    for number, (name, how) in enumerate(STREAMS):
        os.dup2(os.open(place / name, how, 0o600), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 they live as long as the process
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["archetype", *arguments]
    from archetype.cli.main import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
