"""Open sets of parts: a file names a part by its `kind`, and an extension may add kinds without a fork."""

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
from archetype.spec.base import Spec, as_mapping, cut, invalid, with_known_keys
from archetype.spec.registry import load_kinds
from archetype.spec.synonyms import nearest_kind

__all__ = ["ByKind", "Part", "part"]

P = TypeVar("P", bound=type["Part"])
PACKAGE = f"{__package__.partition('.')[0]}."


class Part(Spec):
    """A member of an open set. Each direct subclass is a role (`Mixer`, `Norm`, ...) and holds its kinds by name."""

    kinds: ClassVar[dict[str, type["Part"]]]
    needs: ClassVar[str] = ""  # the capability without which no member of the role is complete: module, or rule
    is_word: ClassVar[bool] = False  # whether a member that says nothing but its kind is written as that word
    is_absent: ClassVar[bool] = False  # whether it stands for nothing: no norm, no feed-forward part
    title: ClassVar[str] = ""  # what readers call the kind; empty where its `kind` in words says it

    if TYPE_CHECKING:  # what every member has as a field

        @property
        def kind(self) -> str: ...

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if Part in cls.__bases__:
            cls.kinds = {}

    def widened(self, factor: int) -> Self | None:
        """The part for vectors `factor` times as wide (muP); None where it does not say how."""
        return self if self.is_absent else None

    @classmethod
    def role_name(cls) -> str:
        """A role in words: MixerPosition -> mixer position, ModelSpec -> model"""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__.removesuffix("Spec")).lower()

    @classmethod
    def parse_kind(cls, data: Mapping[str, Any], default: str | None = None) -> "Part":
        """Check plain data and make it the kind of this role that it names.

        Args:
            data: a mapping with its `kind`.
            default: the kind of a mapping without one (absent: it must say one).

        Raises:
            SpecError: the role has no such kind, or a field is wrong.
        """
        load_all_kinds()
        kind = data.get("kind", default)
        if not isinstance(kind, str) or kind not in cls.kinds:
            cause = f"there is no kind {cut(kind)} of {cls.role_name()}"
            raise SpecError("kind", cause, nearest_kind(str(kind), list(cls.kinds)))
        return cls.kinds[kind].parse(data)

    def reparse(self, data: Mapping[str, Any]) -> Any:
        return self.roles()[0].parse_kind({"kind": getattr(self, "kind")} | dict(data))  # noqa: B009

    @classmethod
    def roles(cls) -> list[type["Part"]]:
        """The open sets that a class belongs to."""
        return [role for role in cls.__mro__ if issubclass(role, Part) and Part in role.__bases__]


def part(cls: P) -> P:
    """Class decorator: let files name this part by the default of its `kind`.

    Raises:
        SpecError: it has no role or no kind, or another class has that kind.
    """
    field = cls.__pydantic_fields__.get("kind")
    if field is None or not isinstance(field.default, str) or not cls.roles():
        cause = "is not a part: it needs a role as its base class and a field `kind` with its name as default"
        raise SpecError(cls.__name__, cause, 'write class Mine(spec.Mixer): kind: Literal["mine"] = "mine"')
    for role in cls.roles():
        known = role.kinds.get(field.default)
        # a notebook's cell that runs twice defines the same class twice
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            cause = f"kind {field.default!r} of {role.__name__} is taken by {known.__module__}.{known.__qualname__}"
            raise SpecError(cls.__name__, cause, "choose another kind")
        role.kinds[field.default] = cls
    return cls


def parts_within(value: Any) -> Iterator[Part]:
    """A part and all that stand in its fields, at any depth; nothing of a value that is none."""
    if isinstance(value, Part):
        yield value
    if isinstance(value, Spec):
        for name in type(value).model_fields:
            yield from parts_within(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts_within(item)


def kinds_from_outside(value: Any) -> set[type[Part]]:
    """The classes of all parts within a specification that are not this package's."""
    return {type(part) for part in parts_within(value) if not type(part).__module__.startswith(PACKAGE)}


def registered_kind(name: str) -> type[Part] | None:
    """The class of a kind that is named as Role.kind; None where it is not registered."""
    load_all_kinds()
    role_name, _, kind = name.partition(".")
    return next((role.kinds.get(kind) for role in Part.__subclasses__() if role.__name__ == role_name), None)


@cache
def load_all_kinds() -> None:
    """Let every role know its kinds, in an order that does not depend on what was imported first."""
    load_kinds()
    for role in Part.__subclasses__():
        role.kinds = dict(sorted(role.kinds.items(), key=lambda item: item[1].__module__))


_rebuilding = RLock()  # before pydantic 2.14 a class that is being rebuilt has no schema for other threads
# references to the classes that a JSON Schema is being made of; each thread describes for itself
_being_described: ContextVar[frozenset[str]] = ContextVar("being described", default=frozenset())


class ByKind:
    """Metadata of a field: read as the class that `kind` names, written as that class, all of them in the JSON Schema.

    Args:
        role: the open set.
        only: attributes, one of which is true of each class that may stand here (absent: all may).
        default: the kind of a mapping without one (absent: it must say one).
        is_said: whether the default kind is written.
    """

    def __init__(self, role: type[Part], *only: str, default: str | None = None, is_said: bool = True) -> None:
        self.role, self.only, self.default, self.is_said = role, only, default, is_said

    def kinds(self) -> dict[str, type[Part]]:
        """The classes that may stand here, by name."""
        load_all_kinds()
        if not self.only:
            return self.role.kinds
        return {kind: cls for kind, cls in self.role.kinds.items() if any(getattr(cls, name) for name in self.only)}

    def validate(self, value: Any) -> Part:
        """The part that a mapping describes; a part itself stays as it is."""
        kinds = self.kinds()
        if isinstance(value, tuple(kinds.values())):
            return cast(Part, value)
        word, value = value, as_mapping(value)
        if not isinstance(value, Mapping):
            invalid("", f"{cut(value)} is not a kind", self._remedy(value))
        if "kind" not in value and self.default is not None:
            value = {"kind": self.default, **value}
        if "kind" not in value:
            invalid("", "its kind is missing", "start it with kind: NAME")
        cls = kinds.get(str(value["kind"]))
        if cls is None:
            invalid("", f"there is no kind {cut(value['kind'])}", nearest_kind(str(value["kind"]), list(kinds)))
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
            if isinstance(word, str) and missing:
                from archetype.spec.example import example

                invalid("", f"{word} alone does not say {enumeration(missing)}", f"write {example(cls)}")
            raise with_known_keys(error, cls) from None

    def _remedy(self, value: Any) -> str:
        """What to write in place of a value that is no kind."""
        from archetype.spec.example import example_of_kind

        kinds, role = self.kinds(), self.role.role_name().replace(" ", "_")
        absent = next((kind for kind, cls in kinds.items() if cls.is_absent), None)
        if not value and absent is not None:
            return f"write {absent}"
        return f"write a kind, such as {example_of_kind(kinds)}; `archetype explain {role}` lists them"

    def dump(self, value: Part, info: SerializationInfo) -> dict[str, Any] | str:
        """The part as plain data: a mapping, or its kind alone."""
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
            # a reference of its own, so that every class stands once among the schema's definitions
            name = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
            reference = core_schema.definition_reference_schema(name)
            if name in _being_described.get():  # a part that holds others of its role
                references.append(handler(reference))
                continue
            token = _being_described.set(_being_described.get() | {name})
            definition = cast(CoreSchema, {**cls.__pydantic_core_schema__, "ref": name})
            try:
                references.append(handler(core_schema.definitions_schema(reference, [definition])))
            finally:
                _being_described.reset(token)
            add_descriptions(handler.resolve_ref_schema(references[-1]), cls)
            if self.default not in (None, kind):  # a mapping without a kind is the default alone
                references[-1] = references[-1] | {"required": ["kind"]}
        words = [kind for kind, cls in self.kinds().items() if _has_defaults(cls)]
        return {"oneOf": references + ([{"enum": words}] if words else [])}


def _has_defaults(cls: type[Part]) -> bool:
    """Whether its name alone says all of it."""
    return not any(field.is_required() for field in cls.model_fields.values())
