"""What all specifications share: frozen, closed, and able to say in words what is wrong with a file."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from archetype.errors import SpecError

__all__ = ["Spec", "fingerprint"]

# Bounds far above any real model: a slip of the keyboard is refused before anything is allocated.
MAX_SIZE = 2**20
MAX_WIDE = 2**24  # of a vocabulary or an inner layer
MAX_LENGTH = 2**31
Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
WideSize = Annotated[int, Field(strict=True, gt=0, le=MAX_WIDE)]
Length = Annotated[int, Field(strict=True, gt=0, le=MAX_LENGTH)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


FULL = "full"  # the serialization context in which no default is left out
EARLIER = "earlier"  # the one in which keys are called what they were once called


class Spec(BaseModel):
    """Frozen data without behaviour. Unknown keys are refused with the nearest valid name.

    `dump` leaves out what equals its default, so that a file says only what matters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    always_dumped: ClassVar[tuple[str, ...]] = ("version", "kind")
    renamed: ClassVar[dict[str, str]] = {}  # keys of earlier files -> what each is called now
    field_names: ClassVar[set[str]] = set()  # of all specifications together

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        Spec.field_names |= set(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    if (name := cls.renamed.get(key)) is not None:
                        invalid(key, f"is now called {name}", f"write {name}")
                    names = list(cls.model_fields)
                    invalid(str(key), "is not a known key", nearest(str(key), names))
        return data

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        fields = type(self).model_fields
        values = handler(self)
        full = info.context == FULL
        earlier = {new: old for old, new in self.renamed.items()} if info.context == EARLIER else {}
        return {name: values.pop(name) for name in self.always_dumped if name in values} | {
            earlier.get(name, name): value
            for name, value in values.items()
            if full or fields[name].is_required() or getattr(self, name) != fields[name].default
        }

    def dump(self, full: bool = False) -> dict[str, Any]:
        """The specification as plain data, the way a file says it; `full` writes out every default."""
        return self.model_dump(mode="json", context=FULL if full else None)

    def _repr_html_(self) -> str:
        """The specification as a notebook shows it: its YAML file."""
        from html import escape

        from archetype.io.yaml import mapping_to_yaml

        return f"<pre>{escape(mapping_to_yaml(self.dump()))}</pre>"

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Check plain data and make it a specification.

        Raises:
            SpecError: names the first field that is wrong, why, and what would be right.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise explain(error) from None

    def replace(self, **fields: Any) -> Self:
        """A copy with some fields replaced, checked anew."""
        return self.parse({name: getattr(self, name) for name in type(self).model_fields} | fields)


def invalid(place: str, cause: str, remedy: str = "") -> NoReturn:
    """Raise, inside a validator, an error that `explain` turns into one sentence.

    Args:
        place: path of the field, relative to the object being validated.
        cause: what is wrong with it.
        remedy: what would be right.
    """
    # pydantic fills {braces} from the context, so the words travel there
    template = "{cause}; {remedy}" if remedy else "{cause}"
    raise PydanticCustomError("invalid", template, {"place": place, "cause": cause, "remedy": remedy})


def explain(error: ValidationError) -> SpecError:
    """The first finding of pydantic, as place, cause and remedy."""
    details = error.errors(include_url=False)
    first = details[0]
    if isinstance(first["input"], dict):  # where a plain value or a mapping may stand, who read the mapping knows more
        first = next((d for d in details[1:] if _keys(d)[: len(_keys(first))] == _keys(first)), first)
    place = path(_keys(first))
    cause, remedy = _in_words(first)
    if first["type"] == "invalid":
        inner = str(first["ctx"]["place"])
        place = f"{place}.{inner}" if place and inner and not inner.startswith("[") else place + inner
    return SpecError(place, cause, remedy)


def _keys(detail: ErrorDetails) -> list[str | int]:
    """The keys of the file that lead to an error; pydantic's location also has tags of unions."""
    return [step for step in detail["loc"] if isinstance(step, int) or step in Spec.field_names]


def path(keys: Iterable[str | int]) -> str:
    """("layers", 3, "mixer") -> layers[3].mixer"""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def fingerprint(spec: Spec, earlier: bool = False) -> str:
    """A hash of everything that changes a number: all fields but the name; `earlier` has the keys' earlier names."""
    data = spec.model_dump(mode="json", context=EARLIER if earlier else None)
    data.pop("name", None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def nearest(name: str, valid: Iterable[str]) -> str:
    """The remedy for a name that is none: the closest one, or all."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(valid)}"


WHOLE, FINITE = ("{} is not a whole number", "give a whole number"), ("{} is not a finite number", "give a number")
BOOLEAN = ("{} is neither true nor false", "use true or false")
MAPPING = ("{} is not a mapping", "write it as {{key: value, ...}}")
LIST = ("{} is not a list", "write it as [item, ...]")
WORDS = {  # pydantic's types of errors: cause and remedy
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


def _in_words(detail: ErrorDetails) -> tuple[str, str]:
    value = detail["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    context = detail.get("ctx", {})
    if detail["type"] == "invalid":
        return str(context["cause"]), str(context["remedy"])
    if detail["type"] in ("union_tag_invalid", "literal_error"):
        tag, valid = context.get("tag", value), str(context.get("expected_tags", context.get("expected")))
        cause = f"there is no kind {tag!r}" if "tag" in context else f"{shown} is not a choice"
        return cause, nearest(str(tag), valid.replace("'", "").replace(" or ", ", ").split(", "))
    if detail["type"] not in WORDS:
        return f"{shown}: {detail['msg']}", ""
    cause, remedy = WORDS[detail["type"]]
    return cause.format(shown), remedy.format(**context)
