"""Descriptions of the fields of specifications, from their metadata or the `Attributes:` of class docstrings.

The descriptions are used in the JSON Schema, by `archetype explain`, and on the page of all kinds, docs/kinds.md, which
`python -m archetype.spec.describe` prints.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from archetype.errors import SpecError, enumeration
from archetype.spec.base import Spec
from archetype.spec.kinds import Part, load_all_kinds
from archetype.spec.synonyms import meant_kind, unknown_word

TITLE = """\
# All kinds and their fields

Which kinds of models and parts exist, and which fields does each have? `archetype explain KIND` prints one of them.
Written by `python -m archetype.spec.describe`.
"""
ROLES = {  # roles of kinds that only one part or model uses, by folder
    "position": "rotary scaling",
    "feedforward": "d_ff",
    "latent_attention": "query projection",
    "linear_attention": "decay",
    "models": "initialization",
    "encoder_decoder": "model",
}
OWN = tuple(f"archetype.{folder}." for folder in ("spec", "roles", "parts", "models"))


def description(cls: type[Spec]) -> str:
    """Return the docstring of a class without its attributes."""
    return inspect.cleandoc(cls.__doc__ or "").partition("Attributes:")[0].strip()


def field_descriptions(cls: type[Spec]) -> dict[str, str]:
    """Return the descriptions of a class's fields, including those of base classes."""
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        descriptions |= attributes(base.__dict__.get("__doc__"))
    kind = {"kind": f"names it: {description(cls).partition('.')[0].partition(chr(10))[0]}."}
    descriptions |= {name: field.description for name, field in cls.model_fields.items() if field.description}
    return {name: text for name, text in (kind | descriptions).items() if name in cls.model_fields}


def add_descriptions(schema: dict[str, Any], cls: type[Spec]) -> None:
    """Add the descriptions of a class and its fields to its JSON Schema."""
    schema["description"] = description(cls)
    for name, text in field_descriptions(cls).items():
        schema["properties"][name]["description"] = text


def kinds() -> Iterator[tuple[str, type[Spec]]]:
    """Yield (role, class) for every class with a `kind`, models first."""
    load_all_kinds()
    roles = filter(_is_own, Part.__subclasses__())
    for role in sorted(roles, key=lambda role: (role.role_name() != "model", role.role_name())):
        yield from ((role.role_name(), cls) for cls in role.kinds.values())
    for cls in _subclasses(Spec):
        if "kind" in cls.model_fields and not issubclass(cls, Part) and _is_own(cls):
            folder = cls.__module__.split(".")[-2]
            yield ROLES.get(folder, folder.replace("_", " ")), cls


def classes_of(kind: str) -> tuple[list[tuple[str, type[Spec]]], str]:
    """Return (role, class) for every class of this kind, and how to write the kind (for synonyms).

    Raises:
        SpecError: the kind is unknown.
    """
    names = list(dict.fromkeys(str(cls.model_fields["kind"].default) for _, cls in kinds()))
    name, written = (kind, kind) if kind in names else meant_kind(kind, names) or ("", "")
    if not name:
        cause, remedy = unknown_word(kind, names)
        raise SpecError(kind[:60], cause, _where_else(kind) or remedy)
    return [(role, cls) for role, cls in kinds() if cls.model_fields["kind"].default == name], written


def _where_else(word: str) -> str:
    # a remedy for a word that names a field, or the KV cache, instead of a kind
    word = word.lower().replace("-", "_").replace(" ", "_")
    if "cache" in word.split("_"):
        return "it is the state that attention keeps; `archetype cost MODEL --length N` has its bytes"
    owners = list(
        dict.fromkeys(str(cls.model_fields["kind"].default) for _, cls in kinds() if word in cls.model_fields)
    )
    return f"it is a field: explain {enumeration(owners[:4], 'or')}" if owners and word != "kind" else ""


def kinds_of(role: str) -> str:
    """Return the kinds of a role or field, one line each; empty if there is no such role."""
    word = role.lower().replace("_", "")
    lines: dict[str, list[str]] = {}
    for name, cls in kinds():
        if is_called(name, word):
            first = " ".join(description(cls).split()).partition(". ")[0].rstrip(".")
            lines.setdefault(f"kinds of {name}:", []).append(f"  {cls.model_fields['kind'].default:<18} {first}")
    return "\n\n".join("\n".join([heading, *entries]) for heading, entries in lines.items())


def is_called(role: str, word: str) -> bool:
    """Return whether a word without underscores names a role: all of its words, or the last one."""
    return word in (role.replace(" ", ""), role.rpartition(" ")[2])


def all_kinds() -> str:
    names: dict[str, list[str]] = {}
    for role, cls in kinds():
        names.setdefault(role, []).append(str(cls.model_fields["kind"].default))
    width = max(map(len, names))
    return "\n".join(f"{role:<{width}}  {' '.join(sorted(members))}" for role, members in names.items())


def explain(kind: str) -> str:
    """Return description, source, fields and defaults of every class of this kind (errors as in `classes_of`)."""
    parts, written = classes_of(kind)
    entries = [entry(role, cls) for role, cls in parts]
    return "\n\n".join([*([f"{kind} is written here as kind: {written}"] if written != kind else []), *entries])


def entry(role: str, cls: type[Spec], heading: str = "") -> str:
    """Return the description of one kind."""
    name = cls.model_fields["kind"].default if "kind" in cls.model_fields else cls.__name__
    lines = [f"{heading}{name} ({role})", "", description(cls)]
    descriptions = field_descriptions(cls)
    fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}
    if fields:
        lines += ["", "| field | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {_default(field)} | {descriptions.get(name, '')} |" for name, field in fields.items()]
    return "\n".join(lines)


def page() -> str:
    """Return the reference page (docs/kinds.md) of all kinds and of specifications without a kind."""
    return TITLE + "".join(f"\n{entry(role, cls, '## ')}\n" for role, cls in entries())


def entries() -> Iterator[tuple[str, type[Spec]]]:
    """Yield (role, class) for every kind, and ("no kind", class) for every other node of a specification."""
    yield from kinds()
    others = (cls for cls in _subclasses(Spec) if "kind" not in cls.model_fields and not issubclass(cls, Part))
    named = (cls for cls in others if _is_own(cls) and cls.model_fields)
    yield from (("no kind", cls) for cls in named)


def _is_own(cls: type[Spec]) -> bool:
    # belongs to specifications, rather than to recipes or extensions, and is not a base of several classes
    return cls.__module__.startswith(OWN) and not cls.__name__.startswith("_")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value: Any = field.default.dump() if isinstance(field.default, Spec) else field.default
    value = value.get("kind", value) if isinstance(value, dict) and set(value) == {"kind"} else value
    if value == "":
        return "empty"
    return "absent" if value is None else f"`{value}`".replace("`False`", "`false`").replace("`True`", "`true`")


def attributes(docstring: str | None) -> dict[str, str]:
    """Return {field: description} from the `Attributes:` of a docstring, each in one line."""
    section = inspect.cleandoc(docstring or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _subclasses(cls: type[Spec]) -> Iterator[type[Spec]]:
    for child in sorted(cls.__subclasses__(), key=lambda child: child.__module__):
        yield child
        yield from _subclasses(child)


if __name__ == "__main__":
    print(page(), end="")
