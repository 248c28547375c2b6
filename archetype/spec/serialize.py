"""Specifications as YAML and JSON, both ways and without loss, and their schema for editors."""

import json
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from archetype.distribution import schema_url
from archetype.errors import SpecError
from archetype.io.yaml import mapping_to_yaml, read_mapping
from archetype.spec.base import Spec, cut
from archetype.spec.model import MODELS, ModelSpec
from archetype.spec.synonyms import nearest_kind

__all__ = ["document_schema", "json_schema", "parse", "read", "to_json", "to_yaml"]


def read(file: Path) -> ModelSpec:
    """The specification in a .yaml, .yml or .json file."""
    try:
        return parse(read_mapping(file))
    except SpecError as error:
        raise error.at(str(file)) if not error.place.startswith(str(file)) else error from None


def parse(data: Any) -> ModelSpec:
    """The specification that plain data describes."""
    if not isinstance(data, dict):
        raise SpecError("", f"a specification is a mapping, not {type(data).__name__}", "write it as key: value lines")
    kind = data.get("kind", "decoder")
    if not isinstance(kind, str) or kind not in MODELS:
        raise SpecError("kind", f"there is no kind {cut(kind)} of model", nearest_kind(str(kind), list(MODELS)))
    return cast(ModelSpec, MODELS[kind].parse(data))


def to_yaml(spec: Spec) -> str:
    """The specification as YAML that `read` gives back unchanged."""
    return mapping_to_yaml(spec.dump())


def to_json(spec: Spec) -> str:
    """The specification as JSON that `read` gives back unchanged."""
    return json.dumps(spec.dump(), indent=2) + "\n"


def json_schema() -> dict[str, Any]:
    """A JSON Schema of specification files, for editors."""
    return document_schema("specification", TypeAdapter(ModelSpec).json_schema(mode="validation"))


def document_schema(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file as a document of its own, with its dialect, address and title.

    Args:
        kind: of file: specification, recipe or experiment.
        schema: of the values in it.
    """
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$id": schema_url(kind)} | schema | {"title": f"Archetype {kind}"}
