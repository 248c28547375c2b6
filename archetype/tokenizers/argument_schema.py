"""Parse tool arguments that a template writes without quotes, by the function's JSON schema."""

import re
from collections.abc import Mapping
from typing import Any

from archetype.tokenizers.notation import scalar


def typed_argument(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """Parse an unquoted value with the type that its schema gives."""
    about = schema.get("properties", {}).get(key)
    if allows(about, schema, "string") and not (allows(about, schema, "null") and scalar(text) is None):
        return text
    return scalar(text)


def allows(about: Any, schema: Mapping[str, Any], kind: str) -> bool:
    """Return whether a schema, which may refer to definitions of the whole schema, allows a JSON type."""
    about = resolved(about, schema)
    kinds = about.get("type")
    return kind in (kinds if isinstance(kinds, list) else [kinds]) or any(
        allows(alternative, schema, kind)
        for name in ("anyOf", "oneOf")
        if isinstance(several := about.get(name), list)
        for alternative in several
    )


def resolved(about: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a reference to a definition of the whole schema by the definition."""
    if not isinstance(about, Mapping):
        return {}
    match = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(about.get("$ref", "")))
    definition = match and schema.get(match[1], {}).get(match[2])
    if not isinstance(definition, Mapping) or "$ref" in definition:
        return about
    return {**definition, **{key: value for key, value in about.items() if key != "$ref"}}
