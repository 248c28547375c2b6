"""What the schema of a function says of its arguments, where a template writes them without quotes."""

import re
from collections.abc import Mapping
from typing import Any

from archetype.tokenizers.notation import scalar


def typed_argument(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """A value that is written without quotes, as the schema of its function says."""
    about = schema.get("properties", {}).get(key)
    if allows(about, schema, "string") and not (allows(about, schema, "null") and scalar(text) is None):
        return text
    return scalar(text)


def allows(about: Any, schema: Mapping[str, Any], kind: str) -> bool:
    """Whether the schema of a value, which may name definitions of a whole schema, says that it may be of a kind."""
    about = resolved(about, schema)
    kinds = about.get("type")
    return kind in (kinds if isinstance(kinds, list) else [kinds]) or any(
        allows(one, schema, kind)
        for name in ("anyOf", "oneOf")
        if isinstance(several := about.get(name), list)
        for one in several
    )


def resolved(about: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value, without a reference to a definition of the whole schema."""
    if not isinstance(about, Mapping):
        return {}
    match = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(about.get("$ref", "")))
    definition = match and schema.get(match[1], {}).get(match[2])
    if not isinstance(definition, Mapping) or "$ref" in definition:
        return about
    return {**definition, **{key: value for key, value in about.items() if key != "$ref"}}
