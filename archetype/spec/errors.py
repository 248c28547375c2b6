"""Convert pydantic's errors to place, cause and remedy."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from archetype.errors import SpecError, SpecErrors, nearest, shorten

if TYPE_CHECKING:
    from archetype.spec.base import Spec

FIELD_NAMES: set[str] = set()  # of all specifications
# (field, kind): kinds whose names are also names of fields. In pydantic's location, such a word is a union tag.
TAGS_LIKE_FIELDS = {
    ("wiring", "parallel"),
    ("pattern", "full"),
    ("state_bridge", "state"),
    ("embedding", "table"),
    ("index", "blocks"),
    ("pattern", "window"),
    ("router", "softmax"),
}
MAX_SHOWN = 60  # characters of a value in a message
MAX_MISTAKES = 20  # per file, one line each
WHOLE, FINITE = ("{} is not a whole number", "use a whole number"), ("{} is not a finite number", "use a number")
BOOLEAN = ("{} is neither true nor false", "use true or false")
MAPPING = ("{} is not a mapping", "write it as {{key: value, ...}}")
LIST = ("{} is not a list", "write it as [item, ...]")
WORDS = {  # {pydantic error type: (cause, remedy)}
    "missing": ("is missing", "set a value"),
    "union_tag_not_found": ("kind is missing", "add kind: NAME"),
    "greater_than": ("{} is too small", "use more than {gt}"),
    "greater_than_equal": ("{} is too small", "use at least {ge}"),
    "less_than": ("{} is too large", "use less than {lt}"),
    "less_than_equal": ("{} is too large", "use at most {le}"),
    "string_type": ("{} is not text", "use text"),
    "too_short": ("is empty", "add at least one item"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), FINITE),
    **dict.fromkeys(("bool_type", "bool_parsing"), BOOLEAN),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), MAPPING),
    **dict.fromkeys(("tuple_type", "list_type"), LIST),
}


def refuse_set(fields: Mapping[str, bool], cause: str, remedy: str) -> None:
    """Call `invalid` for the first field that is set. `{field}` in the remedy is its name."""
    for field, is_set in fields.items():
        if is_set:
            invalid(field, cause, remedy.format(field=field))


def invalid(place: str, cause: str, remedy: str = "") -> NoReturn:
    """Raise an error in a validator. `explain` converts it to a `SpecError`.

    Args:
        place: path of the field, relative to the validated object.
        cause: what is wrong.
        remedy: what would be valid.
    """
    # pydantic formats {braces} with the context, so the texts are passed there
    template = "{cause}; {remedy}" if remedy else "{cause}"
    raise PydanticCustomError("invalid", template, {"place": place, "cause": cause, "remedy": remedy})


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Prefix the place of errors raised by `invalid` within the block."""
    try:
        yield
    except PydanticCustomError as error:
        inner = error.context or {}
        invalid(f"{place}.{inner['place']}".rstrip("."), str(inner["cause"]), str(inner["remedy"]))


def explain(error: ValidationError, every: bool = True) -> SpecError:
    """Convert pydantic errors to place, cause and remedy. Report an error repeated in several layers once."""
    # Pydantic reports an error for every member of a union. Only one of them is kept for each place.
    details: list[ErrorDetails] = []
    unions: list[int] = []  # indices into `details` of errors that concern a member of a union
    for detail in error.errors(include_url=False):
        keys = _keys(detail)
        others = (at for at in unions if (above := _keys(details[at])) == keys[: len(above)])
        if (other := next(others, None)) is None:
            unions += [len(details)] if _is_of_union(detail) else []
            details.append(detail)
        elif isinstance(details[other]["input"], dict):  # of a union, the member that read the mapping
            details[other] = detail
            unions = [at for at in unions if at != other or _is_of_union(detail)]
    mistakes: dict[tuple[str, str, str], SpecError] = {}
    for detail in details:
        if detail["type"] == "too_short" and any(_is_within(other, detail) for other in details):
            continue  # an invalid item is not counted as present
        place, (cause, remedy) = path(_keys(detail)), in_words(detail)
        if detail["type"] == "invalid":
            inner = str(detail["ctx"]["place"])
            place = f"{place}.{inner}" if place and inner and not inner.startswith("[") else place + inner
        mistakes.setdefault((re.sub(r"\[\d+\]", "", place), cause, remedy), SpecError(place, cause, remedy))
    errors = list(mistakes.values())
    if len(errors) > MAX_MISTAKES:
        errors = [*errors[:MAX_MISTAKES], SpecError("", f"and {len(errors) - MAX_MISTAKES} more mistakes")]
    return SpecErrors(errors) if every and len(errors) > 1 else errors[0]


def _is_within(detail: ErrorDetails, other: ErrorDetails) -> bool:
    # whether the location of an error is inside the location of another
    return len(detail["loc"]) > len(other["loc"]) and detail["loc"][: len(other["loc"])] == other["loc"]


def _is_of_union(detail: ErrorDetails) -> bool:
    # for an error of one member of a union, pydantic's location ends with the name of the member
    return detail["type"] != "invalid" and bool(detail["loc"]) and _keys(detail)[-1:] != list(detail["loc"][-1:])


def with_known_keys(error: ValidationError, cls: "type[Spec]") -> ValidationError:
    """Return the same error of parsing `cls`, with a suggestion for each unknown key."""
    lines: list[InitErrorDetails] = []
    misspelt: set[tuple[Any, ...]] = set()
    details = error.errors(include_url=False)
    lacking = [other["loc"] for other in details if other["type"] == "missing"]
    for detail in details:
        kind: Any = detail["type"]
        loc, words = detail["loc"], detail.get("ctx", {})
        if kind in ("extra_forbidden", "invalid_key"):
            *above, key = loc
            owner, loc = _class_at(cls, above), tuple(above)
            cause, remedy, meant = "is not a known key", "", None
            if len(misspelt) <= 2 * MAX_MISTAKES:  # more are not shown
                missing = [name for *place, name in lacking if place == above]
                close = difflib.get_close_matches(str(key), owner.model_fields, n=1, cutoff=0.7)
                one = missing[0] if len(missing) == 1 and not close else None
                names = sorted(owner.model_fields, key=lambda name: name not in owner.always_dumped)
                remedy = f"did you mean {one}?" if one else nearest(str(key), names)
                meant = remedy.removeprefix("did you mean ").removesuffix("?")
            misspelt.add((*above, meant))
            kind, words = "invalid", {"place": str(key), "cause": cause, "remedy": remedy}
        if kind == "model_type" and "kind" in (owner := _class_at(cls, loc)).model_fields:
            from archetype.spec.example import example

            cause, remedy = f"{cut(detail['input'])} is not a mapping", f"write {example(owner)}"
            kind, words = "invalid", {"place": "", "cause": cause, "remedy": remedy}
        if kind == "invalid":
            kind = PydanticCustomError("invalid", "{cause}; {remedy}", words)
        lines.append(InitErrorDetails(type=kind, loc=loc, input=detail["input"], ctx=words))
    lines = [line for line in lines if line["type"] != "missing" or line.get("loc") not in misspelt]
    return ValidationError.from_exception_data(error.title, lines)


def _class_at(cls: "type[Spec]", steps: Sequence[str | int]) -> "type[Spec]":
    # the class of the mapping at pydantic's location: fields, indices and names of union members
    members: list[type[Spec]] = []
    for step in steps:
        if step in cls.model_fields:
            members = list(_classes_in(cls.model_fields[str(step)].annotation))
            cls = members[0] if members else cls
        else:
            cls = next((member for member in members if step in (member.__name__, _kind_of(member))), cls)
    return cls


def _classes_in(annotation: Any) -> "Iterator[type[Spec]]":
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield cast("type[Spec]", annotation)
    for argument in get_args(annotation):
        yield from _classes_in(argument)


def _kind_of(cls: "type[Spec]") -> str:
    field = cls.model_fields.get("kind")
    return "" if field is None else str(field.default)


def _keys(detail: ErrorDetails) -> list[str | int]:
    # the keys in the file; pydantic's location also contains union tags
    steps = detail["loc"]
    return [
        step
        for before, step in zip(("", *steps), steps, strict=False)
        if isinstance(step, int) or (step in FIELD_NAMES and (before, step) not in TAGS_LIKE_FIELDS)
    ]


def path(keys: Iterable[str | int]) -> str:
    """Return a path as text: ("layers", 3, "mixer") becomes layers[3].mixer."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def in_words(detail: ErrorDetails) -> tuple[str, str]:
    value = detail["input"]
    shown = cut(value)
    context = detail.get("ctx", {})
    if detail["type"] == "invalid":
        return str(context["cause"]), str(context["remedy"])
    if detail["type"] in ("union_tag_invalid", "literal_error"):
        from archetype.spec.synonyms import nearest_kind, unknown_kind

        tag, valid = str(context.get("tag", value)), str(context.get("expected_tags", context.get("expected")))
        choices = valid.replace("'", "").replace(" or ", ", ").split(", ")
        if "tag" in context:
            field = next((key for key in reversed(_keys(detail)) if isinstance(key, str)), "part")
            return unknown_kind(tag, choices, field.replace("_", " "))
        return f"{shown} is not a choice", nearest_kind(tag, choices)
    if detail["type"].startswith(("greater_than", "less_than")) and shown.strip("'").lower() == "nan":
        return FINITE[0].format(shown), FINITE[1]
    cause, remedy = WORDS.get(detail["type"], ("{} is not valid here", "archetype schema lists valid values"))
    return cause.format(shown), remedy.format(**context)


def cut(value: Any) -> str:
    """Return a value as shown in messages. Long values are shortened in the middle."""
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return shorten(shown, MAX_SHOWN)
