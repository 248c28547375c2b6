"""The facade for parts from outside: what tutorials, lessons and example extensions import, and nothing below it."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from archetype import extend

ROOT = Path(__file__).parents[2]
PUBLIC = {"archetype", "archetype.spec", "archetype.extend"}
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("adding_a_part", "attention_but_different", "your_own_data")]
FILES = [
    *sorted((ROOT / "tests" / "extensions").glob("*.py")),
    *sorted((ROOT / "course" / "lessons").glob("*.py")),
    *(ROOT / "tests" / "helpers" / f"{name}.py" for name in ("every_role", "linear_attention", "token_shift")),
]


def programs(file: Path) -> list[str]:
    """The Python of a file, or of the code blocks of a page."""
    text = file.read_text(encoding="utf-8")
    return [text] if file.suffix == ".py" else re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL)


def modules_imported(program: str) -> Iterator[str]:
    """Names of the package's modules from which a program imports."""
    for node in ast.walk(ast.parse(program)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if name.split(".")[0] == "archetype")


@pytest.mark.parametrize("file", [*PAGES, *FILES], ids=lambda file: file.stem)
def test_parts_from_outside_import_from_the_facade_alone(file: Path) -> None:
    assert {name for program in programs(file) for name in modules_imported(program)} <= PUBLIC


def test_the_walk_sees_an_import_from_within_the_package() -> None:
    assert [*modules_imported("def f():\n    from archetype.nn.place import Place")] == ["archetype.nn.place"]
    assert {name for page in PAGES for program in programs(page) for name in modules_imported(program)} == PUBLIC


def test_every_name_of_the_facade_is_found_by_programs_and_by_type_checkers() -> None:
    source = ast.parse(inspect.getsource(extend))
    statements = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom)]
    imported = {(node.module, alias.name) for node in statements for alias in node.names}
    from_package = {(module, name) for module, name in imported if module and module.startswith("archetype.")}
    assert {name for _, name in from_package} == set(extend.__all__)
    lazy = {(f"archetype.{module}", name) for module, names in extend._LAZY.items() for name in names.split()}
    assert lazy <= from_package
    assert all(getattr(extend, name) is not None for name in extend.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Plase'"):
        getattr(extend, "Plase")  # noqa: B009
