"""Bodies of requests: strict parsing, and errors that name the field."""

import re
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from archetype.apps.serve.errors import ApiError, unsupported
from archetype.errors import nearest
from archetype.spec.base import in_words, path

TAGS = ("str", "int", "list", "dict", "bool")  # by which pydantic names the types of a union
# What stands where one of several types may: pydantic names an error of each.
EXPECTED = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "input": "a text, a list of texts, or lists of token ids",
    "stop": "a text or a list of texts",
    "source": "a text or a list of token ids",
    "target": "a text or a list of token ids",
    "tool_choice": 'none, auto, required, or {"type": "function", "function": {"name": ...}}',
    "guided_json": "a JSON schema, as an object or a text",
}


class Body(BaseModel):
    """A body: JSON types as they are, no key that is unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}  # fields that are not supported: values that change nothing
    ignored: ClassVar[frozenset[str]] = frozenset()  # fields that change no answer
    instead: ClassVar[dict[str, str]] = {}  # what does the work of a field that is not supported

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parse a body.

        Raises:
            ApiError: it is not JSON, or the first of its fields that is wrong.
        """
        try:
            body = cls.model_validate_json(data)
        except ValidationError as error:
            raise _refusal(error, cls) from None
        for name, values in cls.neutral.items():
            if (value := getattr(body, name)) is not None and value not in values:
                raise unsupported(name, cls.instead.get(name, "leave it out"))
        return body

    def without_effect(self) -> list[str]:
        """The fields of this body that nothing acts on, for the header that names them."""
        return sorted(self.model_fields_set & (self.ignored | self.neutral.keys()))


def _refusal(error: ValidationError, cls: type[Body]) -> ApiError:
    details = error.errors(include_url=False)
    detail: Any = next((one for one in details if one["type"] in ("extra_forbidden", "value_error")), details[0])
    keys = [key for key in detail["loc"] if isinstance(key, int) or (re.fullmatch(r"\w+", key) and key not in TAGS)]
    if not keys:
        if detail["type"] == "json_invalid":
            return ApiError("invalid_json", f"the body is not JSON: {detail['ctx']['error']}; send a JSON object")
        return ApiError("invalid_json", 'the body is not a JSON object; send one, such as {"prompt": "Once"}')
    name = str(keys[0])
    if detail["type"] == "extra_forbidden" and len(keys) == 1:
        return ApiError(
            "unknown_parameter", f"{name}: is not a known parameter; {nearest(name, cls.model_fields)}", name
        )
    if detail["type"] == "value_error":
        return ApiError("invalid_value", f"{name}: {detail['ctx']['error']}", name)
    if name in EXPECTED:
        return ApiError("invalid_value", f"{name}: is not {EXPECTED[name]}", name)
    cause, remedy = in_words(detail)
    if remedy == "archetype schema says what can":
        cause, remedy = detail["msg"][:1].lower() + detail["msg"][1:], ""
    place = path([key for key in keys if isinstance(key, int) or key.islower()])
    return ApiError("invalid_value", f"{place}: {cause}" + (f"; {remedy}" if remedy else ""), name)
