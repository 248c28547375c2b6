"""Example values for the fields of a specification, derived from their types."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise, product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from archetype.errors import SpecError
from archetype.models.block.spec import Block
from archetype.spec.base import Spec
from archetype.spec.kinds import ByKind

# Sizes of every checked model: 24 has many divisors, and heads have an even size, which rotary positions need.
SIZES = {"vocab_size": 31, "context_length": 24, "d_model": 24}
NORM = {"kind": "rms"}
ATTENTION = {"kind": "attention", "num_heads": 4}
EXPERTS = {
    "kind": "experts",
    "num_experts": 4,
    "experts_per_token": 2,
    "expert": {"kind": "gated", "d_ff": 20, "activation": "silu"},
}
# Block of Llama's design, which published formats can express.
BLOCK: dict[str, Any] = {
    "wiring": {"kind": "pre_norm", "norm": NORM},
    "mixer": ATTENTION | {"position": {"kind": "rotary"}},
    "feedforward": {"kind": "gated", "d_ff": 20, "activation": "silu"},
}
WHOLE = (4, 2, 6, 3, 1)  # divisors of the width; each field starts at another index, so that sizes differ
REAL = (2.0, 1.0, 0.5, 4.0)
MOST = 500  # combinations of required fields to try
LARGE = 8  # larger defaults are replaced by SMALL in the example of small sizes
SMALL = 4
NAMES = ("kind", "version", "name")  # fields without effect on results


class Change(NamedTuple):
    """Alternative values of one field."""

    field: str  # path of the field, or the change in words
    options: Iterable[tuple[Any, dict[str, Any]]]  # (value, fields to change); the first valid option is used


def instances(kind: type[Spec], fixed: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """Yield valid specifications of a class, with values for all required fields.

    Args:
        fixed: values of some fields (default: none).

    Raises:
        SpecError: no combination is valid; the error of the last attempt.
    """
    base = SIZES | {"final_norm": NORM}
    fixed = {name: value for name, value in base.items() if name in kind.model_fields} | dict(fixed or {})
    required = {name: field for name, field in kind.model_fields.items() if field.is_required() and name not in fixed}
    options = [values(field, turn) for turn, field in enumerate(required.values())]
    refusal = SpecError(kind.__name__, "a field has a type without example values", "set it with --set FIELD=VALUE")
    is_any = False
    for combination in islice(product(*options), MOST):
        try:
            instance = kind.parse(dict(zip(required, combination, strict=True)) | fixed)
        except SpecError as error:
            refusal = error
            continue
        is_any = True
        yield instance
    if not is_any:
        raise refusal


def values(annotation: Any, turn: int = 0) -> list[Any]:
    """Return candidate values for a type. Validation may still refuse them.

    Args:
        annotation: a type, or a field with its metadata.
        turn: index of the field in its class.
    """
    if isinstance(annotation, FieldInfo):
        return members(role) if (role := by_kind(annotation)) else values(annotation.annotation, turn)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        role = next((metadata for metadata in inner[1:] if isinstance(metadata, ByKind)), None)
        return members(role) if role else values(inner[0], turn)
    if origin in (Union, UnionType):
        return list(chain(*(values(member, turn) for member in inner if member is not NoneType)))
    if origin is Literal:
        return list(inner)
    if origin is tuple:
        single = values(inner[0], turn)
        return [*pairwise(single), *((value,) for value in single)]  # of two, or of one
    if annotation is bool:
        return [False, True]
    if annotation is int:
        return [*WHOLE[turn % len(WHOLE) :], *WHOLE[: turn % len(WHOLE)]]
    if annotation is float:
        return [*REAL[turn % len(REAL) :], *REAL[: turn % len(REAL)]]
    if annotation is str:
        return ["example"]
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return [Block.parse(BLOCK), Block.parse(BLOCK | {"cross_attention": ATTENTION})]
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return list(islice(instances(annotation), 2))
    return []


_open: set[type[Spec]] = set()  # kinds under construction: they may contain parts of their own role


def members(role: ByKind) -> list[Any]:
    """Return one example of each registered kind of a role."""
    examples: list[Any] = []
    for kind in role.kinds().values():
        if not kind.is_absent and kind not in _open:
            _open.add(kind)
            try:
                examples += islice(instances(kind), 1)
            finally:
                _open.remove(kind)
    return examples


def by_kind(field: FieldInfo) -> ByKind | None:
    """Return the marker of a field that accepts any kind of a role; None for other fields."""
    return next((metadata for metadata in field.metadata if isinstance(metadata, ByKind)), None)


def changes(spec: Spec) -> Iterator[Change]:
    """Yield every change of one field: small sizes, flipped flags, other choices, and values for absent fields."""
    fields = {name: field for name, field in type(spec).model_fields.items() if name not in NAMES}
    large = {name: getattr(spec, name) for name in fields if name not in SIZES}
    small = {name: SMALL for name, value in large.items() if type(value) is int and value > LARGE}
    if small:
        yield Change("small sizes", [(None, small)])
    for name, field in fields.items():
        value = getattr(spec, name)
        if value is None or value == () or getattr(value, "is_absent", False):
            yield Change(name, ((other, {name: other}) for other in values(field)))
        elif isinstance(value, bool):
            yield Change(name, [(not value, {name: not value})])
        elif by_kind(field) is None:
            yield from _other_members(name, field, value)


def _other_members(name: str, field: FieldInfo, value: Any) -> Iterator[Change]:
    # other literals or classes that the field allows, and changes within its present class
    for member in _members(field.annotation):
        if get_origin(member) is Literal:
            yield from (Change(name, [(word, {name: word})]) for word in get_args(member) if word != value)
        elif isinstance(member, type) and issubclass(member, Spec) and not isinstance(value, member):
            yield Change(name, ((other, {name: other}) for other in values(member)))
    if isinstance(value, Spec):
        current = {inner: getattr(value, inner) for inner in type(value).model_fields}
        for change in changes(value):
            options = ((other, {name: current | fields}) for other, fields in change.options)
            yield Change(f"{name}.{change.field}", options)


def _members(annotation: Any) -> Iterator[Any]:
    # members of a union, also nested; any other type is its own member
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _members(inner[0])
    elif origin in (Union, UnionType):
        yield from chain(*map(_members, inner))
    else:
        yield annotation
