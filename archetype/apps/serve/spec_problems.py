"""Errors in a specification, with their lines and columns in the YAML text."""

import re
from collections.abc import Iterable
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from archetype.errors import SpecError, SpecErrors
from archetype.models.spec import ModelSpec

EDITOR = "specification"  # name of the web UI's text in errors


class Problem(TypedDict):
    path: str
    line: int
    column: int
    message: str
    remedy: str


class Answered(TypedDict):
    """Begin of an answer about a specification that is right."""

    ok: Literal[True]
    problems: list[Problem]
    name: str


class Problems(TypedDict):
    ok: Literal[False]
    source: NotRequired[str]
    problems: list[Problem]


def answered(spec: ModelSpec) -> Answered:
    return {"ok": True, "problems": [], "name": spec.name or spec.kind}


def problems(error: SpecError, text: str) -> Problems:
    """Return each error with its line and column, or with the position of the enclosing node.

    Args:
        error: one error, or several.
        text: YAML text of the specification.
    """
    import yaml

    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        node = None
    mistakes = error.errors if isinstance(error, SpecErrors) else [error]
    return {"ok": False, "problems": [_problem(mistake, node) for mistake in mistakes]}


def _problem(mistake: SpecError, node: Any) -> Problem:
    match = re.fullmatch(rf"{EDITOR}:(\d+):(\d+)", mistake.place)
    line, column = map(int, match.groups()) if match else position_of(mistake.place, node)
    path = "" if match else mistake.place
    return {"path": path, "line": line, "column": column, "message": mistake.cause, "remedy": mistake.remedy}


def position_of(path: str, node: Any) -> tuple[int, int]:
    """Return the line and column, counted from 1, of the longest prefix of a path that exists in a YAML tree."""
    mark = getattr(node, "start_mark", None)
    for key in re.findall(r"[^.\[\]]+", path):
        for wrapper in ("block", "blocks"):  # `{repeat: N, block: ...}` adds a level that paths leave out
            if (inner := dict(_fields(node)).get(wrapper)) is not None and key != wrapper:
                node = inner[1]
        entry = dict((*_fields(node), *_items(node))).get(key)
        if entry is None:
            break
        mark, node = entry
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def _fields(node: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    if type(node).__name__ == "MappingNode":
        for key, value in node.value:
            yield str(getattr(key, "value", "")), (key.start_mark, value)


def _items(node: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    if type(node).__name__ == "SequenceNode":
        for index, value in enumerate(node.value):
            yield str(index), (value.start_mark, value)
