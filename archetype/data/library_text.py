"""English text that every Python installation has: docstrings and comments of the standard library."""

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from archetype.errors import DataError

# not English prose: tests, generated tables, third-party packages
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "encodings", "__pycache__"}
BODIES = ("body", "handlers", "orelse", "finalbody", "cases")  # fields of a statement that hold statements
SHORTEST = 40  # characters; shorter docstrings and comments say little


def library_text(length: int | None = None) -> str:
    """Return all docstrings and comments of the library without duplicates, in the order of sorted file names.

    Args:
        length: number of characters at the start (absent: all).
    """
    root = Path(sysconfig.get_path("stdlib"))
    passages: dict[str, None] = {}  # keeps the order, drops duplicates
    for file in source_files(root):
        passages |= dict.fromkeys(_passages(file))
        if length is not None and sum(map(len, passages)) >= length:
            break  # before hundreds of files are parsed
    if not passages:
        raise DataError(str(root), "this Python lacks the sources of its standard library", "pass a text with --text")
    return ("\n\n".join(passages) + "\n")[:length]


def source_files(root: Path) -> list[Path]:
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]  # pruned in place for os.walk
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _passages(file: Path) -> Iterator[str]:
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old sources
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return  # one unreadable file among hundreds does not matter
    statements: list[ast.AST] = [tree]  # breadth first, as in ast.walk, but not into expressions
    for node in statements:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) >= SHORTEST:
                yield docstring
        statements += (inner for field in BODIES for inner in getattr(node, field, ()))
    yield from _comments(source)


def _comments(source: str) -> Iterator[str]:
    block: list[str] = []
    for line in [*source.splitlines(), ""]:
        stripped = line.strip()
        if stripped.startswith("#"):  # consecutive comment lines form one passage
            block.append(stripped.lstrip("#").strip())
        else:
            comment = "\n".join(block).strip()
            if len(comment) >= SHORTEST:
                yield comment
            block = []
