"""A bug: one piece of one file, and what is planted instead."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "archetype"


class Bug(NamedTuple):
    """One bug.

    Attributes:
        file: below `archetype/`.
        start: character of the file at which `before` begins.
        before: what the file says.
        after: what is planted instead.
        origin: who made it: "planted", or the seed it was drawn by.
    """

    file: str
    start: int
    before: str
    after: str
    origin: str

    @property
    def folder(self) -> str:
        """The folder it counts for: the first below `archetype/`, of the apps each one."""
        parts = Path(self.file).parts
        return "/".join(parts[:2]) if parts[0] == "apps" else parts[0] if len(parts) > 1 else "."

    @property
    def line(self) -> int:
        """The line it begins in."""
        return source(self.file).count("\n", 0, self.start) + 1

    @property
    def change(self) -> str:
        """Its line, before and after, by which it is told from others of the file."""
        text = source(self.file)
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.start + len(self.before))
        changed = text[first : self.start] + self.after + text[self.start + len(self.before) : last]
        return f"{_shown(text[first:last])} -> {_shown(changed)}"

    @property
    def function(self) -> str | None:
        """The innermost function it is in, with its class; None outside of all functions."""
        return next((name for name, first, last in functions(self.file) if first <= self.line <= last), None)

    def planted(self) -> str:
        """The text of the file with it."""
        text = source(self.file)
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


def _shown(code: str) -> str:
    """Code on one line, without a comment at its end."""
    return " ".join(code.split("  # ")[0].split())


@cache
def source(file: str) -> str:
    """The text of a file of the package, without any bug."""
    return (PACKAGE / file).read_text(encoding="utf-8")


@cache
def functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """The functions of a file as Python names them, with first and last line; inner ones come first."""
    named: list[tuple[str, int, int]] = []

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    collect(child, f"{prefix}{child.name}.<locals>.")
                    named.append((f"{prefix}{child.name}", child.body[0].lineno, child.end_lineno or child.lineno))
                case ast.ClassDef():
                    collect(child, f"{prefix}{child.name}.")
                case _:
                    collect(child, prefix)

    if file.endswith(".py"):
        collect(ast.parse(source(file)), "")
    return tuple(named)
