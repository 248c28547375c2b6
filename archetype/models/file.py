"""Specification files in YAML or JSON."""

from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from archetype.errors import SpecError
from archetype.io.yaml import read_mapping
from archetype.models.spec import AnyModel, ModelSpec
from archetype.spec.serialize import document_schema

__all__ = ["json_schema", "parse", "read"]


def read(file: Path) -> ModelSpec:
    """Read the specification in a .yaml, .yml or .json file."""
    try:
        return parse(read_mapping(file))
    except SpecError as error:
        raise error.at(str(file)) if not error.place.startswith(str(file)) else error from None


def parse(data: Any) -> ModelSpec:
    """Validate plain data and return the specification."""
    if not isinstance(data, dict):
        raise SpecError("", f"a specification is a mapping, not {type(data).__name__}", "write it as key: value lines")
    return cast(ModelSpec, ModelSpec.parse_kind(data, default="decoder"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of specification files, for editors."""
    return document_schema("specification", TypeAdapter(AnyModel).json_schema(mode="validation"))
