"""Which tests call a function of the package: recorded once for each test file, and kept in `build/mutants`.

As a plugin of pytest (`-p tests.mutants.calls`) it writes to the file that `VARIABLE` names. Only the beginnings of
functions are traced, which costs a fraction of what the coverage of lines does. What a test has other processes do is
not seen.
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

VARIABLE = "ARCHETYPE_RECORD_CALLS"
MOST = 12  # tests of one file that are kept for one function


class Recorder:
    """Records the functions that are called.

    Args:
        folder: of the package.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
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
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            places = ((code.co_filename, code.co_qualname) for code in self.called)
            self.calls[item.nodeid] = {
                (file[len(self.folder) :], name) for file, name in places if file.startswith(self.folder)
            }

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
    if os.environ.get(VARIABLE):
        config.pluginmanager.register(Recorder(f"{config.rootpath}/archetype/"))
