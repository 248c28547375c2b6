"""Base class of all specifications: frozen, and without unknown fields."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from archetype.spec.errors import FIELD_NAMES, explain, with_known_keys

__all__ = ["Spec", "fingerprint"]

# Bounds far above any real model: a typing error is refused before anything is allocated.
MAX_SIZE = 2**20
MAX_WIDE = 2**24  # vocabulary or inner layer
MAX_LENGTH = 2**31
MAX_FLOAT = 3.4028234663852886e38  # largest float32 number
Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
WideSize = Annotated[int, Field(strict=True, gt=0, le=MAX_WIDE)]
Length = Annotated[int, Field(strict=True, gt=0, le=MAX_LENGTH)]
Index = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
LayerIndex = Annotated[int, Field(strict=True, ge=-MAX_SIZE, le=MAX_SIZE)]  # negative: relative to the end
Positive = Annotated[float, Field(strict=True, gt=0, le=MAX_FLOAT, allow_inf_nan=False)]
Finite = Annotated[float, Field(strict=True, ge=-MAX_FLOAT, le=MAX_FLOAT, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, le=MAX_FLOAT, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


# Flags in the context of a serialization.
FULL = "full"  # write all defaults
TERSE = "terse"  # write no defaults
EACH_LAYER = "each layer"  # write layers one by one, without groups that repeat


class Spec(BaseModel):
    """Frozen, validated data. An unknown key is an error that suggests the nearest valid name."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    always_dumped: ClassVar[tuple[str, ...]] = ("version", "kind")
    letters: ClassVar[Mapping[str, str]] = {}  # meanings of letters that differ from the legend or are missing there

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        FIELD_NAMES.update(cls.model_fields)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # with the descriptions of fields
        from archetype.spec.describe import add_descriptions

        reference = handler(schema)
        add_descriptions(handler.resolve_ref_schema(reference), cls)
        return reference

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        fields = type(self).model_fields
        values = handler(self)
        words = info.context or ()
        full, said = FULL in words, () if TERSE in words else self.always_said()
        return {name: values.pop(name) for name in self.always_dumped if name in values} | {
            name: value
            for name, value in values.items()
            if full or name in said or fields[name].is_required() or getattr(self, name) != fields[name].default
        }

    def always_said(self) -> tuple[str, ...]:
        """Return fields that are written even with their default value, because absence has a different meaning."""
        return ()

    def dump(self, full: bool = False, each_layer: bool = False) -> dict[str, Any]:
        """Return the specification as plain data, as written in a file, without defaults.

        Args:
            full: write all defaults.
            each_layer: write the layers of a stack one by one, without groups that repeat.
        """
        return self.model_dump(mode="json", context=(FULL,) * full + (EACH_LAYER,) * each_layer)

    def _repr_html_(self) -> str:
        from html import escape

        from archetype.io.yaml import mapping_to_yaml

        return f"<pre>{escape(mapping_to_yaml(self.dump()))}</pre>"

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Validate plain data and return the specification.

        Raises:
            SpecError: names each invalid field, the cause and a remedy.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise explain(with_known_keys(error, cls)) from None

    def reparse(self, data: Mapping[str, Any]) -> Any:
        """Validate plain data and return a specification of this class; for a part, of any kind of its role."""
        return self.parse(data)

    def replace(self, **fields: Any) -> Self:
        """Return a validated copy with some fields replaced. Other defaults remain defaults."""
        copy = self.parse({name: getattr(self, name) for name in type(self).model_fields} | fields)
        object.__setattr__(copy, "__pydantic_fields_set__", self.model_fields_set | fields.keys())
        return copy


def fingerprint(spec: Spec) -> str:
    """Return a hash of all fields except the name."""
    data = spec.model_dump(mode="json", context=(TERSE,))
    data.pop("name", None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
