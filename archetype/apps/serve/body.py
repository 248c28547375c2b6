"""Request bodies: strict parsing with errors that name the field."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from archetype.apps.serve.errors import ApiError, invalid_value, unsupported
from archetype.errors import nearest
from archetype.spec.errors import in_words, path

TAGS = ("str", "int", "list", "dict", "bool")  # pydantic's names of the types of a union
# Descriptions of fields with several types: pydantic reports one error per type.
EXPECTED = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "input": "a text, a list of texts, or lists of token ids",
    "stop": "a text or a list of texts",
    "source": "a text or a list of token ids",
    "target": "a text or a list of token ids",
    "tool_choice": 'none, auto, required, or {"type": "function", "function": {"name": ...}}',
    "guided_json": "a JSON schema, as an object or a text",
}


class Unsupported:
    """Mark of a field that is refused, unless its value has no effect.

    Args:
        neutral: values without effect.
        instead: alternative to the field.
    """

    def __init__(self, *neutral: Any, instead: str = "remove it") -> None:
        self.neutral, self.instead = neutral, instead


IGNORED = object()
Ignored = Annotated[Any, IGNORED]  # a field without effect on the response


class Fields(BaseModel):
    """JSON object in a body, parsed without type conversion and without unknown keys.

    Attributes:
        ignored: names of the fields that are `Ignored`.
        unsupported: marks of the fields that are `Unsupported`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ignored: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[dict[str, Unsupported]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        marks = [(name, mark) for name, field in cls.model_fields.items() for mark in field.metadata]
        cls.ignored = frozenset(name for name, mark in marks if mark is IGNORED)
        cls.unsupported = {name: mark for name, mark in marks if isinstance(mark, Unsupported)}

    def check(self, path: str = "") -> None:
        """Refuse unsupported fields, including those of nested objects.

        Args:
            path: path of this object in the body, such as "messages[0].".

        Raises:
            ApiError: a field is not supported. The message names the first such field.
        """
        for name, mark in self.unsupported.items():
            if (value := getattr(self, name)) is not None and value not in mark.neutral:
                raise unsupported(f"{path}{name}", mark.instead)
        for name, index, inner in self._inner():
            inner.check(f"{path}{name}{index}.")

    def without_effect(self) -> list[str]:
        """Return the fields without effect, including those of nested objects, for the header that names them."""
        names = sorted(self.model_fields_set & (self.ignored | self.unsupported.keys()))
        names += [f"{name}.{field}" for name, _, inner in self._inner() for field in inner.without_effect()]
        return list(dict.fromkeys(names))

    def _inner(self) -> Iterator[tuple[str, str, "Fields"]]:
        # nested objects as (field name, index if in a list, object)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Fields):
                yield name, "", value
            elif isinstance(value, list):
                yield from ((name, f"[{index}]", item) for index, item in enumerate(value) if isinstance(item, Fields))


class Body(Fields):
    """The body of a request."""

    expected: ClassVar[dict[str, str]] = EXPECTED

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parse a body.

        Raises:
            ApiError: the body is not JSON, or a field is wrong. The message names the first such field.
        """
        try:
            body = cls.model_validate_json(data)
        except ValidationError as error:
            raise _refusal(error, cls) from None
        body.check()
        return body


def unknown(path: str, name: str, known: Iterable[str]) -> ApiError:
    """Return the error of an unknown key.

    Args:
        path: path of the key in the body.
        known: valid keys, for a suggestion.
    """
    param = re.split(r"[.\[]", path)[0]
    return ApiError("unknown_parameter", f"{path}: is not a known parameter; {nearest(name, known)}", param)


def _known(cls: Any, keys: list[Any]) -> list[str]:
    # the field names of the object at a path in a body
    kinds = [cls]
    for key in (key for key in keys if isinstance(key, str)):
        fields = [kind.model_fields[key].annotation for kind in kinds if key in kind.model_fields]
        kinds = [inner for field in fields for inner in _classes(field)]
    return [field.alias or name for kind in kinds for name, field in kind.model_fields.items()]


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _classes(inner)


def _refusal(error: ValidationError, cls: type[Body]) -> ApiError:
    details = error.errors(include_url=False)
    # a union of types has one error for each; unknown keys and our own checks say most
    detail: Any = next((item for item in details if item["type"] in ("extra_forbidden", "value_error")), details[0])
    if detail["type"] == "extra_forbidden":
        *before, name = detail["loc"]
        # pydantic's locations also name the member of a union that was tried, such as `list[Message]`
        before = [key for key in before if isinstance(key, int) or (re.fullmatch(r"\w+", key) and key.islower())]
        before = [key for key in before if key not in TAGS]
        return unknown(path([*before, name]), name, _known(cls, before))
    keys = [key for key in detail["loc"] if isinstance(key, int) or (re.fullmatch(r"\w+", key) and key not in TAGS)]
    if not keys:
        if detail["type"] == "json_invalid":
            return ApiError("invalid_json", f"the body is not JSON: {detail['ctx']['error']}; send a JSON object")
        return ApiError("invalid_json", 'the body is not a JSON object; send an object such as {"prompt": "Once"}')
    name = str(keys[0])
    if detail["type"] == "value_error":
        return invalid_value(name, str(detail["ctx"]["error"]))
    if name in cls.expected:
        return invalid_value(name, f"is not {cls.expected[name]}")
    cause, remedy = in_words(detail)
    if remedy == "archetype schema lists valid values":
        cause, remedy = detail["msg"][:1].lower() + detail["msg"][1:], ""
    field = path([key for key in keys if isinstance(key, int) or key.islower()])
    return ApiError("invalid_value", f"{field}: {cause}" + (f"; {remedy}" if remedy else ""), name)
