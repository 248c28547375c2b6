"""Short valid examples of parts and fields, for error messages."""

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from archetype.spec.base import Spec
from archetype.spec.kinds import ByKind, Part
from archetype.spec.synonyms import SYNONYMS

VALUES = {bool: "true", int: "8", float: "1.0", str: "NAME"}


def example_of_kind(kinds: dict[str, type[Part]]) -> str:
    """Return an example of the most common kind other than the absent part, as a word if possible."""
    present = {kind: cls for kind, cls in kinds.items() if not cls.is_absent} or kinds
    kind = next((kind for kind in SYNONYMS if kind in present), next(iter(present)))
    return example(present[kind]) if _required(present[kind]) else kind


def example(cls: type[Spec]) -> str:
    """Return a specification in one line of YAML: its kind, and a value for each required field."""
    parts = [f"kind: {cls.model_fields['kind'].default}"] if "kind" in cls.model_fields else []
    for name, field in _required(cls).items():
        parts.append(f"{name}: {_value(field.annotation, field.metadata)}")
    return f"{{{', '.join(parts)}}}"


def _required(cls: type[Spec]) -> dict[str, Any]:
    return {name: field for name, field in cls.model_fields.items() if field.is_required()}


def _value(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    if (by_kind := next((argument for argument in metadata if isinstance(argument, ByKind)), None)) is not None:
        return example_of_kind(by_kind.kinds())
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], arguments[1:])
    if origin is Literal:
        return str(arguments[0])
    if origin in (Union, types.UnionType):
        return _value(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return f"[{_value(arguments[0])}]"
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return example(annotation)
    return VALUES.get(annotation, "...")
