"""Base class of all specifications: frozen, without unknown fields, and with readable error messages."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, NoReturn, Self, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from archetype.errors import SpecError, SpecErrors, nearest, shorten

__all__ = ["Spec", "fingerprint"]

# Bounds far above any real model: a typing error is refused before anything is allocated.
MAX_SIZE = 2**20
MAX_WIDE = 2**24  # vocabulary or inner layer
MAX_LENGTH = 2**31
MAX_FLOAT = 3.4028234663852886e38  # largest float32 number
Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
WideSize = Annotated[int, Field(strict=True, gt=0, le=MAX_WIDE)]
Length = Annotated[int, Field(strict=True, gt=0, le=MAX_LENGTH)]
Index = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
LayerIndex = Annotated[int, Field(strict=True, ge=-MAX_SIZE, le=MAX_SIZE)]  # negative: relative to the end
Positive = Annotated[float, Field(strict=True, gt=0, le=MAX_FLOAT, allow_inf_nan=False)]
Finite = Annotated[float, Field(strict=True, ge=-MAX_FLOAT, le=MAX_FLOAT, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, le=MAX_FLOAT, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


# Flags in the context of a serialization.
FULL = "full"  # write all defaults
TERSE = "terse"  # write no defaults
EACH_LAYER = "each layer"  # write layers one by one, without groups that repeat
TAGS_LIKE_FIELDS = {  # kinds whose name is also a field of a recipe or experiment, after the field that holds them
    ("wiring", "parallel"),
    ("pattern", "full"),
    ("state_bridge", "state"),
}


class Spec(BaseModel):
    """Frozen data without behaviour. An unknown key is refused with the nearest valid name as a suggestion.

    `dump` leaves out defaults, so that a file contains only what matters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    always_dumped: ClassVar[tuple[str, ...]] = ("version", "kind")
    field_names: ClassVar[set[str]] = set()  # of all specifications
    letters: ClassVar[Mapping[str, str]] = {}  # meanings of letters that differ from the legend or are missing there

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        Spec.field_names |= set(cls.model_fields)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON Schema, with the field descriptions of the docstring."""
        from archetype.spec.describe import add_descriptions

        reference = handler(schema)
        add_descriptions(handler.resolve_ref_schema(reference), cls)
        return reference

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        fields = type(self).model_fields
        values = handler(self)
        words = info.context or ()
        full, said = FULL in words, () if TERSE in words else self.always_said()
        return {name: values.pop(name) for name in self.always_dumped if name in values} | {
            name: value
            for name, value in values.items()
            if full or name in said or fields[name].is_required() or getattr(self, name) != fields[name].default
        }

    def always_said(self) -> tuple[str, ...]:
        """Return fields that are written even if they equal their default, as their absence has another meaning."""
        return ()

    def dump(self, full: bool = False, each_layer: bool = False) -> dict[str, Any]:
        """Return the specification as plain data, as written in a file.

        Args:
            full: write all defaults.
            each_layer: write the layers of a stack one by one, without groups that repeat.
        """
        return self.model_dump(mode="json", context=(FULL,) * full + (EACH_LAYER,) * each_layer)

    def _repr_html_(self) -> str:
        """Return the YAML of the specification, for notebooks."""
        from html import escape

        from archetype.io.yaml import mapping_to_yaml

        return f"<pre>{escape(mapping_to_yaml(self.dump()))}</pre>"

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Validate plain data and return the specification.

        Raises:
            SpecError: names each invalid field, the cause and a remedy.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise explain(with_known_keys(error, cls)) from None

    def reparse(self, data: Mapping[str, Any]) -> Any:
        """Validate plain data and return a specification of this class; for a part, of any kind of its role."""
        return self.parse(data)

    def replace(self, **fields: Any) -> Self:
        """Return a validated copy with some fields replaced; other defaults remain defaults."""
        copy = self.parse({name: getattr(self, name) for name in type(self).model_fields} | fields)
        object.__setattr__(copy, "__pydantic_fields_set__", self.model_fields_set | fields.keys())
        return copy


def invalid(place: str, cause: str, remedy: str = "") -> NoReturn:
    """Raise an error in a validator, which `explain` turns into one sentence.

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
    """Convert pydantic errors to place, cause and remedy; an error repeated in several layers is reported once."""
    details: list[ErrorDetails] = []
    unions: list[int] = []  # indices into `details`
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
    """Whether an error concerns a part of what another error concerns."""
    return len(detail["loc"]) > len(other["loc"]) and detail["loc"][: len(other["loc"])] == other["loc"]


def _is_of_union(detail: ErrorDetails) -> bool:
    """Whether an error concerns one member of a union, whose name then ends the location."""
    return detail["type"] != "invalid" and bool(detail["loc"]) and _keys(detail)[-1:] != list(detail["loc"][-1:])


def with_known_keys(error: ValidationError, cls: type[Spec]) -> ValidationError:
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


def _class_at(cls: type[Spec], steps: Sequence[str | int]) -> type[Spec]:
    """Return the class of the mapping at a path of fields, indices and names of union members."""
    members: list[type[Spec]] = []
    for step in steps:
        if step in cls.model_fields:
            members = list(_classes_in(cls.model_fields[str(step)].annotation))
            cls = members[0] if members else cls
        else:
            cls = next((member for member in members if step in (member.__name__, _kind_of(member))), cls)
    return cls


def _classes_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes_in(argument)


def _kind_of(cls: type[Spec]) -> str:
    field = cls.model_fields.get("kind")
    return "" if field is None else str(field.default)


class Named:
    """Metadata of a union by `kind`: a string stands for the member of that name with all its defaults."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(as_mapping, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        members = handler(cast(CoreSchema, schema.get("schema", schema)))
        return {"anyOf": [members, {"enum": list(members["discriminator"]["mapping"])}]}


def as_mapping(value: Any) -> Any:
    """Return the mapping that a string stands for: rotary is {kind: rotary}."""
    return {"kind": value} if isinstance(value, str) else value


def _keys(detail: ErrorDetails) -> list[str | int]:
    """Return the keys of the file that lead to an error; pydantic's location also contains union tags."""
    steps = detail["loc"]
    return [
        step
        for before, step in zip(("", *steps), steps, strict=False)
        if isinstance(step, int) or (step in Spec.field_names and (before, step) not in TAGS_LIKE_FIELDS)
    ]


def path(keys: Iterable[str | int]) -> str:
    """("layers", 3, "mixer") -> layers[3].mixer"""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def fingerprint(spec: Spec) -> str:
    """Return a hash of all fields that change a number, thus not the name."""
    data = spec.model_dump(mode="json", context=(TERSE,))
    data.pop("name", None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


MAX_SHOWN = 60  # characters of a value in a message
MAX_MISTAKES = 20  # per file, one line each
WHOLE, FINITE = ("{} is not a whole number", "give a whole number"), ("{} is not a finite number", "give a number")
BOOLEAN = ("{} is neither true nor false", "use true or false")
MAPPING = ("{} is not a mapping", "write it as {{key: value, ...}}")
LIST = ("{} is not a list", "write it as [item, ...]")
WORDS = {  # {pydantic error type: (cause, remedy)}
    "missing": ("is missing", "give it a value"),
    "union_tag_not_found": ("its kind is missing", "start it with kind: NAME"),
    "greater_than": ("{} is too small", "use more than {gt}"),
    "greater_than_equal": ("{} is too small", "use at least {ge}"),
    "less_than": ("{} is too large", "use less than {lt}"),
    "less_than_equal": ("{} is too large", "use at most {le}"),
    "string_type": ("{} is not text", "give text"),
    "too_short": ("is empty", "give it at least one item"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), FINITE),
    **dict.fromkeys(("bool_type", "bool_parsing"), BOOLEAN),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), MAPPING),
    **dict.fromkeys(("tuple_type", "list_type"), LIST),
}


def in_words(detail: ErrorDetails) -> tuple[str, str]:
    value = detail["input"]
    shown = cut(value)
    context = detail.get("ctx", {})
    if detail["type"] == "invalid":
        return str(context["cause"]), str(context["remedy"])
    if detail["type"] in ("union_tag_invalid", "literal_error"):
        from archetype.spec.synonyms import nearest_kind

        tag, valid = str(context.get("tag", value)), str(context.get("expected_tags", context.get("expected")))
        cause = f"there is no kind {cut(tag)}" if "tag" in context else f"{shown} is not a choice"
        return cause, nearest_kind(tag, valid.replace("'", "").replace(" or ", ", ").split(", "))
    if detail["type"].startswith(("greater_than", "less_than")) and shown.strip("'").lower() == "nan":
        return FINITE[0].format(shown), FINITE[1]
    cause, remedy = WORDS.get(detail["type"], ("{} cannot stand here", "archetype schema says what can"))
    return cause.format(shown), remedy.format(**context)


def cut(value: Any) -> str:
    """Return a value as shown in messages; long values are shortened in the middle."""
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return shorten(shown, MAX_SHOWN)
