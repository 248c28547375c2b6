"""The tests near a bug: those that call its function, the quickest first. They are found by recording all once."""

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.bug import PACKAGE, ROOT, Bug, source
from tests.mutants.calls import quickest
from tests.mutants.checkout import KERNELS, Checkout

KEPT = ROOT / "build" / "mutants"
TESTS = ROOT / "tests"
FAR = ("clients", "page", "convergence", "claims", "mutants")  # folders that take long, or test another thing
# of how kernels are built, which fail with any change of their sources
BUILDING = ("tests/unit/native/test_compiler.py", "tests/unit/native/test_library.py")
BUDGET = 45.0  # seconds of tests for one bug
FURTHER = 180.0  # of those that a bug must survive too
SPEAKING = 12  # tests that come first because of their words
BATCH = 8  # test files that are recorded in one process
HOUR = 3600.0


def missing() -> list[list[str]]:
    """The test files that are not recorded as they are now, in batches for one process each."""
    files = [file for file in test_files() if not kept(file).exists()]
    return [files[start : start + BATCH] for start in range(0, len(files), BATCH)]


def record(copy: Checkout, files: list[str]) -> None:
    """Record test files in a copy of the checkout without any bug."""
    whole = copy.path.parent / "record.json"
    whole.unlink(missing_ok=True)
    copy.run(files, timeout=HOUR, record=whole)
    recorded = json.loads(whole.read_text())
    for file in files:
        kept(file).write_text(json.dumps(recorded.get(file, {"failed": [], "seconds": {}, "functions": {}})))
        for name in recorded.get(file, {}).get("failed", ()):
            print(f"fails without any bug: {name}", flush=True)
    print(f"recorded: {' '.join(files)}", flush=True)


def test_files() -> list[str]:
    """The files of tests, from the root of the checkout; those of `tests/unit` come first."""
    files = [file.relative_to(ROOT) for file in TESTS.rglob("test_*.py")]
    own = [str(file) for file in files if file.parts[1] not in FAR]
    return sorted(own, key=lambda file: (not file.startswith("tests/unit"), file))


@cache
def kept(file: str) -> Path:
    """Where the record of a test file is, as it is now."""
    digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
    return KEPT / f"{file.removesuffix('.py').replace('/', '.')}-{digest}.json"


@cache
def records() -> dict[str, Any]:
    """What was recorded, by test file."""
    return {file: json.loads(kept(file).read_text()) for file in test_files() if kept(file).exists()}


def failing() -> list[str]:
    """The tests that fail without any bug."""
    return [name for record in records().values() for name in record["failed"]]


@cache
def near(bug: Bug) -> tuple[str, ...]:
    """Names of tests for a bug, those of one file behind each other; see `_order`."""
    return _grouped(_within(BUDGET, _order(bug)))


def further(bug: Bug) -> tuple[str, ...]:
    """Names of the next tests for a bug that none of the first ones notices."""
    first = {*near(bug)}
    return _grouped(_within(FURTHER, {test: seconds for test, seconds in _order(bug).items() if test not in first}))


def _within(seconds: float, tests: Mapping[str, float]) -> list[str]:
    """The tests that fit one after the other into some seconds."""
    names = []
    for test, needed in tests.items():
        if needed <= seconds:
            seconds -= needed
            names.append(test)
    return names


def _grouped(names: Sequence[str]) -> tuple[str, ...]:
    """Names of tests, those of one file behind each other."""
    order = {file: place for place, file in enumerate(dict.fromkeys(name.split("::")[0] for name in names))}
    return tuple(sorted(names, key=lambda name: order[name.split("::")[0]]))


def _order(bug: Bug) -> dict[str, float]:
    """All tests that may notice a bug, in the order in which they are tried, with their seconds.

    They are those that call its function; outside of functions any of its file, or of files that import it. First come
    those that speak of what its line does, and those of the folder that mirrors the bug's. Further ones of the same
    test files come last, for what is computed once is recorded for the first test that asks for it.
    """
    calling = {} if bug.function is None else _calling({bug.file}, bug.function)
    calling = calling or _calling({bug.file, *_importing(bug.file)}, None)
    if bug.file.endswith(KERNELS):
        calling = _calling({"native/kernels.py", "native/library.py"}, None)
    calling = {test: seconds for test, seconds in calling.items() if test.split("::")[0] not in BUILDING}
    others: dict[str, float] = {}
    for file in dict.fromkeys(test.split("::")[0] for test in calling):
        others |= records()[file]["seconds"]
    own = {test: seconds for test, seconds in calling.items() if test.startswith(f"tests/unit/{bug.folder}/")}
    tests = [*speaking(bug, others), *quickest(own), *quickest(calling), *quickest(others)]
    return {test: others[test] for test in tests}


def speaking(bug: Bug, tests: Iterable[str]) -> list[str]:
    """The tests whose code shares most words with a bug's lines and function, of each the case whose name does.

    A word counts less the more tests have it.
    """
    all_words = _words_of_tests()
    around = source(bug.file).split("\n")[max(bug.line - 2, 0) : bug.line + 1]
    said = _words(" ".join(around)) | _words(bug.function or "")
    weight = {
        word: math.log(len(all_words) / (1 + sum(word in words for words in all_words.values()))) for word in said
    }
    best: dict[str, tuple[float, str]] = {}  # by a test's name: the score and the name of one of its cases
    for test in tests:
        name, _, case = test.partition("[")
        score = sum(weight[word] for word in said & (all_words.get(name, frozenset()) | _words(case)))
        best[name] = max(best.get(name, (0.0, "")), (score, test))
    return [test for score, test in sorted(best.values(), reverse=True)[:SPEAKING] if score > 0]


@cache
def _words_of_tests() -> dict[str, frozenset[str]]:
    """The words of every test."""
    words = {}
    for file in test_files():
        text = (ROOT / file).read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                parts = [ast.get_source_segment(text, part) or "" for part in (node, *node.decorator_list)]
                words[f"{file}::{node.name}"] = _words(" ".join(parts))
    return words


def _words(code: str) -> frozenset[str]:
    """The words in code, those within names too."""
    return frozenset(word.lower() for word in re.findall(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}", code))


def _calling(files: Iterable[str], function: str | None) -> dict[str, float]:
    """The tests that call a function, or any of some files, with their seconds."""
    tests: dict[str, float] = {}
    for record in records().values():
        for file in files:
            functions = record["functions"].get(file, {})
            for name in functions if function is None else [function]:
                tests |= {test: record["seconds"][test] for test in functions.get(name, ())}
    return tests


@cache
def _importing(file: str) -> tuple[str, ...]:
    """The files of the package that import from a file."""
    module = "archetype." + ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    return tuple(other for other in _modules() if module in _imported(other))


@cache
def _modules() -> tuple[str, ...]:
    return tuple(str(file.relative_to(PACKAGE)) for file in sorted(PACKAGE.rglob("*.py")))


@cache
def _imported(file: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)
