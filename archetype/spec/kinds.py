"""Parts: a specification names each part by its `kind`, and extensions can add kinds."""

import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from archetype.errors import SpecError, enumeration
from archetype.spec.base import Spec
from archetype.spec.errors import cut, invalid, with_known_keys
from archetype.spec.registry import load_kinds
from archetype.spec.synonyms import unknown_kind

__all__ = ["ByKind", "Part", "part"]

P = TypeVar("P", bound=type["Part"])
PACKAGE = f"{__package__.partition('.')[0]}."


class Part(Spec):
    """Base class of roles (`Mixer`, `Norm`, ...), which are its direct subclasses, and of the kinds of each role."""

    kinds: ClassVar[dict[str, type["Part"]]]
    needs: ClassVar[str] = ""  # capability that every member of the role must have: module, or rule
    is_word: ClassVar[bool] = False  # whether a member with defaults only is written as a word
    is_absent: ClassVar[bool] = False  # whether it means that the part is left out, such as no norm
    title: ClassVar[str] = ""  # display name of the kind (empty: `kind` in words)

    if TYPE_CHECKING:  # a field of every member

        @property
        def kind(self) -> str: ...

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if Part in cls.__bases__:
            cls.kinds = {}

    def widened(self, factor: int) -> Self | None:
        """Return the part for vectors `factor` times as wide (muP); None if that is not defined."""
        return self if self.is_absent else None

    @classmethod
    def role_name(cls) -> str:
        """Return the name of a role in words: "mixer position" for MixerPosition, "model" for ModelSpec."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__.removesuffix("Spec").removesuffix("Config")).lower()

    @classmethod
    def parse_kind(cls, data: Mapping[str, Any], default: str | None = None) -> "Part":
        """Validate plain data and return the part of this role with its kind.

        Args:
            data: mapping with a `kind`.
            default: kind of a mapping without `kind` (absent: `kind` is required).

        Raises:
            SpecError: the kind is unknown, or a field is invalid.
        """
        load_all_kinds()
        kind = data.get("kind", default)
        if not isinstance(kind, str) or kind not in cls.kinds:
            raise SpecError("kind", *unknown_kind(kind, list(cls.kinds), cls.role_name()))
        return cls.kinds[kind].parse(data)

    def reparse(self, data: Mapping[str, Any]) -> Any:
        return self.roles()[0].parse_kind({"kind": getattr(self, "kind")} | dict(data))  # noqa: B009

    @classmethod
    def roles(cls) -> list[type["Part"]]:
        """Return the roles of a class."""
        return [role for role in cls.__mro__ if issubclass(role, Part) and Part in role.__bases__]


def part(cls: P) -> P:
    """Register a part, so that files can name it by the default of its `kind`.

    Raises:
        SpecError: the part has no role or no kind, or another class has this kind.
    """
    field = cls.__pydantic_fields__.get("kind")
    if field is None or not isinstance(field.default, str) or not cls.roles():
        cause = "is not a part: it needs a role as its base class and a field `kind` with its name as default"
        raise SpecError(cls.__name__, cause, 'write class Mine(spec.Mixer): kind: Literal["mine"] = "mine"')
    for role in cls.roles():
        known = role.kinds.get(field.default)
        # running a notebook cell twice defines the same class twice
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            cause = f"kind {field.default!r} of {role.__name__} is taken by {known.__module__}.{known.__qualname__}"
            raise SpecError(cls.__name__, cause, "choose another kind")
        role.kinds[field.default] = cls
    return cls


def parts_within(value: Any) -> Iterator[Part]:
    """Yield a part and all parts in its fields, at any depth. Other values contain no parts."""
    if isinstance(value, Part):
        yield value
    if isinstance(value, Spec):
        for name in type(value).model_fields:
            yield from parts_within(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts_within(item)


def kinds_from_outside(value: Any) -> set[type[Part]]:
    """Return the classes of all parts in a specification that are defined outside this package."""
    return {type(part) for part in parts_within(value) if not type(part).__module__.startswith(PACKAGE)}


def registered_kind(name: str) -> type[Part] | None:
    """Return the class of a kind from its name, Role.kind; None if the kind is not registered."""
    load_all_kinds()
    role_name, _, kind = name.partition(".")
    return next((role.kinds.get(kind) for role in Part.__subclasses__() if role.__name__ == role_name), None)


@cache
def load_all_kinds() -> None:
    """Load the kinds of all roles, in an order that does not depend on earlier imports."""
    load_kinds()
    for role in Part.__subclasses__():
        role.kinds = dict(sorted(role.kinds.items(), key=lambda item: item[1].__module__))


_rebuilding = RLock()  # before pydantic 2.14, other threads cannot use the schema of a class while it is rebuilt
# references to the classes whose JSON Schema is being built in this thread
_being_described: ContextVar[frozenset[str]] = ContextVar("being described", default=frozenset())


class ByKind:
    """Field metadata: parse the value as the class named by its `kind`. The JSON Schema lists all allowed classes.

    Args:
        only: class attributes; a class is allowed if at least one of them is true (absent: all classes are allowed).
        default: kind of a mapping without `kind` (absent: `kind` is required).
        is_said: whether the default kind is written.
    """

    def __init__(self, role: type[Part], *only: str, default: str | None = None, is_said: bool = True) -> None:
        self.role, self.only, self.default, self.is_said = role, only, default, is_said

    def kinds(self) -> dict[str, type[Part]]:
        """Return the allowed classes, keyed by kind."""
        load_all_kinds()
        if not self.only:
            return self.role.kinds
        return {kind: cls for kind, cls in self.role.kinds.items() if any(getattr(cls, name) for name in self.only)}

    def validate(self, value: Any) -> Part:
        kinds = self.kinds()
        if isinstance(value, tuple(kinds.values())):
            return cast(Part, value)
        word, value = value, as_mapping(value)
        if not isinstance(value, Mapping):
            invalid("", f"{cut(value)} is not a kind", self._remedy(value))
        if "kind" not in value and self.default is not None:
            value = {"kind": self.default, **value}
        if "kind" not in value:
            invalid("", "kind is missing", "add kind: NAME")
        cls = kinds.get(str(value["kind"]))
        if cls is None:
            name, role = str(value["kind"]), self.role.role_name()
            if name in self.role.kinds:
                invalid("", f"the {role} '{name}' cannot be used here", f"use one of {', '.join(kinds)}")
            invalid("", *unknown_kind(value["kind"], list(kinds), role))
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            missing = [str(detail["loc"][0]) for detail in error.errors() if detail["type"] == "missing"]
            if isinstance(word, str) and missing:
                from archetype.spec.example import example

                invalid("", f"{word} needs {enumeration(missing)}", f"write {example(cls)}")
            raise with_known_keys(error, cls) from None

    def _remedy(self, value: Any) -> str:
        from archetype.spec.example import example_of_kind

        kinds, role = self.kinds(), self.role.role_name().replace(" ", "_")
        absent = next((kind for kind, cls in kinds.items() if cls.is_absent), None)
        if not value and absent is not None:
            return f"write {absent}"
        return f"write a kind, such as {example_of_kind(kinds)}; `archetype explain {role}` lists them"

    def dump(self, value: Part, info: SerializationInfo) -> dict[str, Any] | str:
        data = value.model_dump(mode=info.mode, context=info.context)
        if value.is_word and len(data) == 1:
            return str(data["kind"])
        if not self.is_said and data["kind"] == self.default:
            del data["kind"]
        return data

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        serializer = core_schema.plain_serializer_function_ser_schema(self.dump, info_arg=True)
        return core_schema.no_info_plain_validator_function(self.validate, serialization=serializer)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        from archetype.spec.describe import add_descriptions

        references = []
        for kind, cls in self.kinds().items():
            with _rebuilding:
                cls.model_rebuild()
            # a unique reference, so that every class is defined once in the schema
            name = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
            reference = core_schema.definition_reference_schema(name)
            if name in _being_described.get():  # a part that contains others of its role
                references.append(handler(reference))  # expanding it again would never end
                continue
            token = _being_described.set(_being_described.get() | {name})
            definition = cast(CoreSchema, {**cls.__pydantic_core_schema__, "ref": name})
            try:
                references.append(handler(core_schema.definitions_schema(reference, [definition])))
            finally:
                _being_described.reset(token)
            add_descriptions(handler.resolve_ref_schema(references[-1]), cls)
            if self.default not in (None, kind):  # without a kind, a mapping is the default one
                references[-1] = references[-1] | {"required": ["kind"]}
        fields = {kind: cls.model_fields.values() for kind, cls in self.kinds().items()}
        words = [kind for kind, of_kind in fields.items() if not any(field.is_required() for field in of_kind)]
        return {"oneOf": references + ([{"enum": words}] if words else [])}


class Named:
    """Field metadata of a union by `kind`: a string is read as the member of that kind with its defaults."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(as_mapping, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        members = handler(cast(CoreSchema, schema.get("schema", schema)))
        return {"anyOf": [members, {"enum": list(members["discriminator"]["mapping"])}]}


def as_mapping(value: Any) -> Any:
    """Return {"kind": value} for a string, and other values unchanged."""
    return {"kind": value} if isinstance(value, str) else value
