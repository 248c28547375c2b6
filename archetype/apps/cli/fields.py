"""Options that set fields: their types, choices, defaults and help are what the fields' classes declare.

A class is read as text and not imported: most of them need torch, and the help of a verb has to come at once.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import typer

from archetype.apps.cli.options import complete_presets
from archetype.spec.docstring import attributes

PACKAGE = Path(__file__).parents[2]
TYPES = {  # of options; that of all other fields is str
    **dict.fromkeys(("int", "Size", "Length", "Steps", "Index"), int),
    **dict.fromkeys(("float", "Positive", "NotNegative", "Probability"), float),
    "Flag": bool,
    "tuple": list[str],
}
SECOND_NAMES = {"learning_rate": "--lr"}  # that users bring along
COMPLETIONS = {"spec": complete_presets}
Verb = TypeVar("Verb", bound=Callable[..., None])


class Field(NamedTuple):
    """A field that an option sets.

    Attributes:
        path: in the whole, such as optimizer.learning_rate.
        place: the file and the class that declare it, such as training/schedules.py:WarmUp.
    """

    path: str
    place: str


def fields(place: str, *names: str, **paths: str) -> dict[str, Field]:
    """Fields by the names of their options.

    Args:
        place: the file and the class that declare them.
        names: fields whose options are called as they are.
        paths: the others.
    """
    return {option: Field(path, place) for option, path in (dict(zip(names, names, strict=True)) | paths).items()}


def takes(fields: Mapping[str, Field], chosen: Mapping[str, str] | None = None) -> Callable[[Verb], Verb]:
    """Decorator of a verb whose `**options` are fields: each becomes an option, with None where it is not given.

    Args:
        fields: by the names of their options.
        chosen: what stands for an option that is not given, where the field's class says otherwise or nothing.
    """

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [_parameter(option, field, (chosen or {}).get(option)) for option, field in fields.items()]
        verb.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return verb

    return decorate


def values_of(fields: Mapping[str, Field], options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields whose options are given, by their paths."""
    values = {field.path: options[option] for option, field in fields.items() if options.get(option) is not None}
    return {path: tuple(value) if isinstance(value, list) else value for path, value in values.items()}


def _parameter(option: str, field: Field, chosen: str | None) -> inspect.Parameter:
    declared, texts = _declared(*field.place.split(":"))
    name = next(key for key in field.path.split(".") if key in declared)  # adapter of adapter.kind
    annotation, default = declared[name]
    kind, text = _type(annotation), texts[name]
    if absent := re.search(r" \(absent: (.*)\)", text):
        text, chosen = text.replace(absent[0], ""), chosen or absent[1]
    elif value := re.fullmatch(r'"?([\w.-]+)"?', default):
        chosen = chosen or value[1]
    text = f"{text[0].upper()}{text[1:].removesuffix('.')}{'; may be repeated' if kind == list[str] else ''}."
    about = typer.Option(
        f"--{option.replace('_', '-')}",
        *filter(None, [SECOND_NAMES.get(option)]),
        help=text if chosen in (None, "None", "False") else f"{text}  [default: {chosen}]",
        autocompletion=COMPLETIONS.get(option),
    )
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, about]
    )


@cache
def _declared(file: str, name: str) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Annotation and default of each field of a class, and what each means; those of bases in the same file too."""
    source = (PACKAGE / file).read_text(encoding="utf-8")
    if (beginning := re.search(rf"^class {name}\((.*)\):\n", source, re.MULTILINE)) is None:
        return {}, {}
    _, docstring, rest = source[beginning.end() :].split('"""', 2)
    body = re.split(r"^(?:\S|    def |    @)", rest, maxsplit=1, flags=re.MULTILINE)[0]
    bases = [_declared(file, base) for base in beginning[1].split(", ")]
    declared = {name: field for fields, _ in bases for name, field in fields.items()}
    texts = {name: text for _, meanings in bases for name, text in meanings.items()}
    own = re.findall(r"^    (\w+): (.+?)(?: = (.+?))?(?:  # .*)?$", body, re.MULTILINE)
    return declared | {name: (annotation, default) for name, annotation, default in own}, texts | attributes(docstring)


def _type(annotation: str) -> Any:
    """The type of the option of a field: int of `Size | None`, a list of `tuple[str, ...]`, a text of a part."""
    if annotation.startswith("Literal["):
        return Literal[tuple(re.findall(r'"(.+?)"', annotation))]
    return TYPES.get(re.findall(r"\w+", annotation.removeprefix("Annotated["))[0], str)
