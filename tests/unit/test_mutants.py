"""The bugs of `make mutants` can be planted: what each replaces is in its file, and what is drawn is drawn again."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.helpers.cases import case
from tests.mutants.__main__ import bugs, folders
from tests.mutants.bug import PACKAGE, ROOT, Bug, source
from tests.mutants.calls import TRACED
from tests.mutants.drawn import Places, draw, sites
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.planted import BUGS
from tests.mutants.traced.sitecustomize import VARIABLE as PROCESSES


def test_every_bug_made_by_hand_replaces_what_is_there_once() -> None:
    for file, pairs in BUGS.items():
        for before, after in pairs:
            with case(file, before):
                assert source(file).count(before) == 1
                planted = source(file).replace(before, after)
                assert planted != source(file)
                if file.endswith(".py"):
                    ast.parse(planted)


def test_every_folder_has_bugs_made_by_hand_or_drawn() -> None:
    counts = Counter(bug.folder for bug in bugs())
    assert {*folders()} <= counts.keys()
    assert sum(counts.values()) >= 150 and min(counts.values()) >= 3


def test_what_is_drawn_is_a_program_and_drawn_again() -> None:
    files = [str(file.relative_to(PACKAGE)) for file in sorted(PACKAGE.rglob("*.py"))][::9]
    for seed, file in enumerate(file for file in files if sites(file)):
        with case(file, seed):
            bug = draw(file, seed)
            assert draw(file, seed) == bug and bug.planted() != source(file)
            ast.parse(bug.planted())


def test_every_kind_of_mutation_is_drawn_as_it_says() -> None:
    text = (
        "def f(a, b=2, *c):\n    if a < b and not c:\n        return g(a, -b, key=True)\n"
        "    a += max(b, 3)\n    table['x'] = [n for n in c if n]\n    return {'y': a * 2.5, 'z': a if b else 1}\n"
    )
    mutations = {(site.kind, text[site.start : site.end], site.after) for site in Places(text).all()}
    assert mutations >= {
        ("comparison", " < ", " <= "),
        ("logic", " and ", " or "),
        ("sign", "not c", "c"),
        ("sign", "-b", "b"),
        ("arguments", "a, -b", "-b, a"),
        ("option", ", key=True", ""),
        ("constant", "True", "False"),
        ("constant", "2.5", "5.0"),
        ("constant", "3", "4"),
        ("twin", "max", "min"),
        ("key", "'y'", "'y_'"),
        ("key", "'x'", "'x_'"),
        ("operator", " * ", " / "),
        ("condition", "b", "not (b)"),
        ("condition", "n", "(not (n))"),
        ("statement", "a += max(b, 3)", "pass"),
    }


def test_a_bug_knows_its_function_and_shows_its_line() -> None:
    for file, code, function in (
        ("inspection/residual.py", "CONTENTS = ", None),
        ("inspection/residual.py", "rows.append(cells)", "ResidualView.table"),
        ("inspection/patching.py", "y = x.clone()", "patching_view.<locals>.patch"),
    ):
        bug = Bug(file, source(file).index(code), code, "wrong", "")
        assert bug.function == function and bug.line == source(file)[: bug.start].count("\n") + 1
        assert code in bug.change.split(" -> ")[0] and bug.change.split(" -> ")[1].startswith("wrong")


def test_what_is_equivalent_is_drawn() -> None:
    for (file, change), reason in EQUIVALENT.items():
        with case(file, change):
            before, _ = change.split(" -> ", 1)
            assert before in " ".join(source(file).split()) and reason


def test_what_other_processes_of_a_test_call_is_recorded(tmp_path: Path) -> None:
    log, package = tmp_path / "called", f"{PACKAGE}/"
    code = (
        "import os\nfrom archetype.table import Table, quantity\nquantity(1.0)\n"
        "if not os.fork():\n    quantity(1.0), str(Table(['a'], [['b']]))\n    os._exit(9)\nos.wait()"
    )
    variables = {"PYTHONPATH": os.pathsep.join([str(TRACED), str(ROOT)]), PROCESSES: f"{log}{os.pathsep}{package}"}
    subprocess.run([sys.executable, "-c", code], env=os.environ | variables, check=True)
    called = [line.split("\t") for line in log.read_text().splitlines()]
    assert called.count(["table.py", "quantity"]) == 2  # by both processes, for either may belong to another test
    assert called.count(["table.py", "Table.__str__"]) == 1
