"""English that exists wherever Python runs: the docstrings and comments of its own standard library."""

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from archetype.errors import DataError

# Not English prose: tests, generated tables, other people's packages.
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "encodings", "__pycache__"}
BODIES = ("body", "handlers", "orelse", "finalbody", "cases")  # of a statement: other statements
SHORTEST = 40  # characters; shorter docstrings and comments say little


def library_text() -> str:
    """All docstrings and comments, file by file in the order of their names, each of them once.

    Raises:
        DataError: this Python came without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    passages: dict[str, None] = {}  # keeps the order, drops what is repeated
    for file in source_files(root):
        passages |= dict.fromkeys(_passages(file))
    if not passages:
        raise DataError(str(root), "this Python has no sources of its standard library", "give a text with --text")
    return "\n\n".join(passages) + "\n"


def source_files(root: Path) -> list[Path]:
    """The files of a library whose docstrings are English prose."""
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]  # which os.walk then does not enter
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _passages(file: Path) -> Iterator[str]:
    """A file's docstrings and its blocks of comment lines."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old sources
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return  # one unreadable file of hundreds is no loss
    statements: list[ast.AST] = [tree]  # breadth first, as in ast.walk, but not into expressions
    for node in statements:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) >= SHORTEST:
                yield docstring
        statements += (inner for field in BODIES for inner in getattr(node, field, ()))
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
