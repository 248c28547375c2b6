"""Catalogue of all roles and kinds as plain data: what `archetype explain --all --json` says of specifications."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from archetype.spec.base import Spec
from archetype.spec.describe import description, entries, field_descriptions, kinds
from archetype.spec.kinds import ByKind, Part
from archetype.spec.registry import load_kinds, provided

SOURCE = re.compile(r"[A-Z][\w'-]+ (?:19|20)\d\d")  # such as Vaswani 2017
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", Any: "any"}


def catalogue() -> dict[str, Any]:
    """Return all roles with their kinds, and all kinds, models first, with those that have no `kind`."""
    roles: dict[str, list[str]] = {}
    for role, cls in kinds():
        roles.setdefault(role, []).append(str(cls.model_fields["kind"].default))
    return {"roles": roles, "kinds": [record(role, cls) for role, cls in entries()]}


def record(role: str, cls: type[Spec]) -> dict[str, Any]:
    """Return one kind: what it is, its papers, its fields, and its capabilities (files of its folder)."""
    is_named, text, meanings = "kind" in cls.model_fields, " ".join(description(cls).split()), field_descriptions(cls)
    fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}
    return {
        "kind": cls.model_fields["kind"].default if is_named else None,
        "name": cls.__name__,
        "role": role if is_named else None,
        "meaning": text,
        "sources": SOURCE.findall(text),
        "fields": [_field(name, field, meanings.get(name, "")) for name, field in fields.items()],
        "capabilities": capabilities(cls),
    }


def capabilities(cls: type[Spec]) -> list[str]:
    """Return the names of a kind's capabilities, such as module, cost and transplant."""
    # tensor parallelism belongs to the module that is split
    module = provided("module", cls)
    owners = {"parallel": module if isinstance(module, type) else None}
    named = ((name, owners.get(name, cls)) for name in _files())
    return [name for name, owner in named if owner is not None and provided(name, owner) is not None]


@cache
def _files() -> tuple[str, ...]:
    # the files of all folders, some of which are capabilities
    folders = (import_module(package).__path__ for package in load_kinds())
    return tuple(sorted({file.name for folder in folders for file in iter_modules(folder)} - {"spec"}))


def _field(name: str, field: FieldInfo, meaning: str) -> dict[str, Any]:
    is_required = field.default is PydanticUndefined
    return {
        "name": name,
        "type": " or ".join(dict.fromkeys(_types(field.annotation, field.metadata))),
        "required": is_required,
        "default": None if is_required else _plain(field.default),
        "meaning": meaning,
        "sources": SOURCE.findall(meaning),
    }


def _types(annotation: Any, metadata: Any = ()) -> Iterator[str]:
    # a part is named by its role, such as "kind of norm"
    origin, inner = get_origin(annotation), get_args(annotation)
    if by_kind := [about for about in metadata if isinstance(about, ByKind)]:
        yield f"kind of {by_kind[0].role.role_name()}"
    elif origin is Annotated:
        yield from _types(inner[0], inner[1:])
    elif origin in (Union, UnionType):
        for each in inner:
            yield from _types(each)
    elif origin is Literal:
        yield from map(repr, inner)
    elif origin in (tuple, list):
        members = (name for each in inner if each is not ... for name in _types(each))
        yield f"list of {' or '.join(dict.fromkeys(members))}"
    elif origin is not None:
        yield "mapping"
    elif annotation in PLAIN:
        yield PLAIN[annotation]
    elif Part in getattr(annotation, "__bases__", ()):
        yield f"kind of {annotation.role_name()}"
    else:
        yield getattr(annotation, "__name__", str(annotation))


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.dump()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
