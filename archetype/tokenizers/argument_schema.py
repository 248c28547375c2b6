"""Parsing of tool arguments that a template writes without quotes, guided by the function's JSON schema."""

import re
from collections.abc import Mapping
from typing import Any

from archetype.tokenizers.notation import scalar


def typed_argument(text: str, schema: Mapping[str, Any], key: str) -> Any:
    part = schema.get("properties", {}).get(key)
    if allows(part, schema, "string") and not (allows(part, schema, "null") and scalar(text) is None):
        # a string needs no quotes; `null` for a part that allows both is the value
        return text
    return scalar(text)


def allows(part: Any, schema: Mapping[str, Any], kind: str) -> bool:
    """Return whether a subschema, which may refer to the schema's definitions, allows a JSON type."""
    part = resolved(part, schema)
    types = part.get("type")
    return kind in (types if isinstance(types, list) else [types]) or any(
        allows(alternative, schema, kind)
        for name in ("anyOf", "oneOf")
        if isinstance(several := part.get(name), list)
        for alternative in several
    )


def resolved(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(part, Mapping):
        return {}
    match = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(part.get("$ref", "")))
    definition = match and schema.get(match[1], {}).get(match[2])
    # one level only: references to references may form a cycle
    if not isinstance(definition, Mapping) or "$ref" in definition:
        return part
    return {**definition, **{key: value for key, value in part.items() if key != "$ref"}}
