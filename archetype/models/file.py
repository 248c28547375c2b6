"""Specification files in YAML or JSON."""

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from archetype.errors import SpecError, errors_at
from archetype.io.yaml import read_mapping, yaml_value
from archetype.io.yaml_edit import edited as edited_values
from archetype.models.spec import AnyModel, ModelSpec
from archetype.spec.serialize import document_schema

__all__ = ["edited", "json_schema", "parse", "read"]


def read(file: Path) -> ModelSpec:
    data = read_mapping(file)
    with errors_at(str(file)):
        return parse(data)


def edited(text: str, before: ModelSpec, after: ModelSpec) -> str | None:
    """Edit a YAML text that describes `before` to describe `after`, keeping its comments; None if that fails."""
    candidates = []
    for each_layer in (False, True):  # a file may repeat its layers or list each
        old, new = (spec.dump(full=True, each_layer=each_layer) for spec in (before, after))
        candidate = edited_values(text, old, new, after.dump(each_layer=each_layer))
        with suppress(SpecError):
            if parse(yaml_value(candidate, "")) == after:
                candidates.append(candidate)
    lines = set(text.splitlines())
    # the edit that keeps the most lines
    return max(candidates, key=lambda candidate: len(lines & {*candidate.splitlines()}), default=None)


def parse(data: Any) -> ModelSpec:
    if not isinstance(data, dict):
        raise SpecError("", f"a specification is a mapping, not {type(data).__name__}", "write it as key: value lines")
    return cast(ModelSpec, ModelSpec.parse_kind(data, default="decoder"))


def json_schema() -> dict[str, Any]:
    return document_schema("specification", TypeAdapter(AnyModel).json_schema(mode="validation"))
