"""A process that can be killed ends what works too long or takes too much, and the next request finds another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from archetype.confined import process as confined
from archetype.confined.process import Confined, ConfinedError

MEMORY = 2**28
VALUES = ["text", "世界 \ud800", {"a": [1, 2.5, None, True]}, [], "long" * 10_000]


@pytest.fixture(scope="module")
def process() -> Iterator[Confined]:
    confined = Confined("tests.helpers.confined_work", MEMORY)
    yield confined
    confined.close()


def ask(process: Confined, *args: Any, seconds: float = 0.2, max_bytes: int = 1000) -> Any:
    return process(*args, seconds=seconds, max_bytes=max_bytes)


def test_it_gives_what_the_function_gives(process: Confined) -> None:
    for value in VALUES:
        assert ask(process, "give", value) == value
    assert ask(process, "print") == "printed"
    assert ask(process, "sleep", 0.5) == "slept"  # another's work, or a busy machine, is not its own
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: ask(process, "give", number), range(50))) == list(range(50))


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        (("work",), "takes longer than 0.2 s"),
        (("take", 2**40), "needs more than 256 MiB"),
        (("nest",), "recursion"),
        (("die", 3), "needs more than 256 MiB, or nests too deeply"),
        (("give", range(3)), "not JSON serializable"),
        (("list", 3), "not JSON serializable"),
        (("unknown",), "unknown"),
    ],
)
def test_what_is_too_much_is_said_and_the_next_request_served(process: Confined, work: Any, cause: str) -> None:
    with pytest.raises(ConfinedError, match=cause):
        ask(process, *work)
    assert ask(process, "give", 1) == 1


def test_a_longer_reply_than_may_be_is_refused(process: Confined) -> None:
    with pytest.raises(ConfinedError, match="has a result of more than 1 MiB"):
        ask(process, "repeat", 2**21, max_bytes=2**20)
    assert ask(process, "give", 1) == 1


def test_without_a_clock_for_its_work_the_other_process_ends_it(
    process: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "BUSY", 0)  # a second passes
    with pytest.raises(ConfinedError, match="takes longer than 9 s"):
        ask(process, "sleep", 60, seconds=9)


def test_one_that_was_killed_from_outside_is_replaced(process: Confined) -> None:
    assert ask(process, "give", 1) == 1
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert ask(process, "give", 2) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system copies no processes")
def test_a_copy_of_the_process_has_one_of_its_own() -> None:
    program = """
import os
from archetype.confined.process import Confined
confined = Confined("tests.helpers.confined_work", 2**28)
ask = lambda value: confined("give", value, seconds=1, max_bytes=100)
assert ask(1) == 1
copy = os.fork()
assert [ask(number) for number in range(99)] == list(range(99))
if copy:
    assert os.waitpid(copy, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_it_ends_with_the_process_that_started_it() -> None:
    program = """
import os, signal
from archetype.confined.process import Confined
confined = Confined("tests.helpers.confined_work", 2**28)
confined("give", 1, seconds=1, max_bytes=100)
print(confined._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    pid, deadline = int(done.stdout), time.monotonic() + 20
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] != "Z"  # of a parent that waits for nobody
    except OSError:
        return False
