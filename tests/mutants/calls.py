"""Which tests call a function of the package: recorded once for each test file, and kept in `build/mutants`.

As a plugin of pytest (`-p tests.mutants.calls`) it writes to the file that `VARIABLE` names. Only the beginnings of
functions are traced, which costs a fraction of what the coverage of lines does. Processes that a test starts write
what they call to a file (`tests/mutants/traced`).
"""

import json
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.mutants.traced.sitecustomize import VARIABLE as PROCESSES

VARIABLE = "ARCHETYPE_RECORD_CALLS"
TRACED = Path(__file__).with_name("traced")  # on the path of processes that are recorded
MOST = 12  # tests of one file that are kept for one function


class Recorder:
    """Records the functions that are called.

    Args:
        folder: of the package.
        others: the file to which other processes write.
    """

    def __init__(self, folder: str, others: Path) -> None:
        self.folder = folder
        self.others = others
        self.called: set[CodeType] = set()
        self.calls: dict[str, set[tuple[str, str]]] = {}
        self.seconds: Counter[str] = Counter()
        self.outcomes: dict[str, set[str]] = defaultdict(set)

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a function; None, for its lines are not followed."""
        self.called.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test with all that is set up for it."""
        self.called.clear()
        self.others.write_text("")
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            places = ((code.co_filename, code.co_qualname) for code in self.called)
            calls = {(file[len(self.folder) :], name) for file, name in places if file.startswith(self.folder)}
            elsewhere = [line.split("\t") for line in self.others.read_text().splitlines()]
            self.calls[item.nodeid] = calls | {(file, name) for file, name in elsewhere}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long a test takes, and whether it passes."""
        self.seconds[report.nodeid] += report.duration
        self.outcomes[report.nodeid].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Write, for each test file, which functions are called by which tests."""
        passed = quickest({name: self.seconds[name] for name in self.calls if self.outcomes[name] == {"passed"}})
        files: dict[str, dict[str, Any]] = {}
        for test, outcomes in self.outcomes.items():
            file = files.setdefault(test.split("::")[0], {"failed": [], "seconds": {}, "functions": {}})
            file["failed"] += [test] if "failed" in outcomes else []
        for test in passed:
            file = files[test.split("::")[0]]
            file["seconds"][test] = round(self.seconds[test], 3)
            for called, function in sorted(self.calls[test]):
                tests = file["functions"].setdefault(called, {}).setdefault(function, [])
                tests += [test] if len(tests) < MOST else []
        Path(os.environ[VARIABLE]).write_text(json.dumps(files))


def quickest(seconds: dict[str, float]) -> list[str]:
    """Tests in the order of time; the further cases of one test come behind the first ones of all."""
    cases: Counter[str] = Counter()
    ranked = []
    for test in sorted(seconds, key=lambda test: (seconds[test], test)):
        name = test.split("[")[0]
        ranked.append((cases[name], seconds[test], test))
        cases[name] += 1
    return [test for *_, test in sorted(ranked)]


def pytest_configure(config: pytest.Config) -> None:
    """Record where this is asked for."""
    if not os.environ.get(VARIABLE):
        return
    package, others = f"{config.rootpath}/archetype/", Path(os.environ[VARIABLE]).with_suffix(".others")
    os.environ[PROCESSES] = os.pathsep.join([str(others), package])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TRACED), os.environ.get("PYTHONPATH", "")])
    config.pluginmanager.register(Recorder(package, others))
