"""English that exists wherever Python runs: the docstrings and comments of its own standard library."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from archetype.errors import DataError

# Not English prose: tests, generated tables, other people's packages.
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "encodings", "__pycache__"}
SHORTEST = 40  # characters; shorter docstrings and comments say little


def library_text() -> str:
    """All docstrings and comments, file by file in the order of their names, each said once.

    Raises:
        DataError: this Python came without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    passages: dict[str, None] = {}  # keeps the order, drops what is repeated
    for file in sorted(root.rglob("*.py")):
        if not LEFT_OUT & set(file.relative_to(root).parts):
            passages |= dict.fromkeys(_passages(file))
    if not passages:
        raise DataError(str(root), "this Python has no sources of its standard library", "give a text with --text")
    return "\n\n".join(passages) + "\n"


def _passages(file: Path) -> Iterator[str]:
    """A file's docstrings and its blocks of comment lines."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old sources
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return  # one unreadable file of hundreds is no loss
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) >= SHORTEST:
                yield docstring
    yield from _comments(source)


def _comments(source: str) -> Iterator[str]:
    """Blocks of lines that are nothing but comments."""
    block: list[str] = []
    for line in [*source.splitlines(), ""]:
        stripped = line.strip()
        if stripped.startswith("#"):
            block.append(stripped.lstrip("#").strip())
        else:
            comment = "\n".join(block).strip()
            if len(comment) >= SHORTEST:
                yield comment
            block = []
