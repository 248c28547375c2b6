"""YAML and JSON of specifications, and JSON Schema documents for editors."""

import json
from typing import Any

from archetype.distribution import schema_url
from archetype.io.yaml import mapping_to_yaml
from archetype.spec.base import Spec

__all__ = ["document_schema", "to_json", "to_yaml"]


def to_yaml(spec: Spec) -> str:
    """Return the specification as YAML. Parsing the YAML returns an equal specification."""
    return mapping_to_yaml(spec.dump())


def to_json(spec: Spec) -> str:
    """Return the specification as JSON. Parsing the JSON returns an equal specification."""
    return json.dumps(spec.dump(), indent=2) + "\n"


def document_schema(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a complete JSON Schema document for a kind of file, with dialect, title and, if available, address.

    Args:
        kind: specification, recipe or experiment.
        schema: schema of the values.
    """
    dialect = "https://json-schema.org/draft/2020-12/schema"
    address = schema_url(kind)
    head = {"$schema": dialect} | ({"$id": address} if address else {})
    return head | schema | {"title": f"Archetype {kind}"}
