"""Specifications as YAML and JSON, both ways and without loss, and their schema for editors."""

import json
from typing import Any

from archetype.distribution import schema_url
from archetype.io.yaml import mapping_to_yaml
from archetype.spec.base import Spec

__all__ = ["document_schema", "to_json", "to_yaml"]


def to_yaml(spec: Spec) -> str:
    """The specification as YAML that reading gives back unchanged."""
    return mapping_to_yaml(spec.dump())


def to_json(spec: Spec) -> str:
    """The specification as JSON that reading gives back unchanged."""
    return json.dumps(spec.dump(), indent=2) + "\n"


def document_schema(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file as a document, with its dialect, title and, if it has one, address.

    Args:
        kind: of file: specification, recipe or experiment.
        schema: of the values in it.
    """
    dialect = "https://json-schema.org/draft/2020-12/schema"
    address = schema_url(kind)
    head = {"$schema": dialect} | ({"$id": address} if address else {})
    return head | schema | {"title": f"Archetype {kind}"}
