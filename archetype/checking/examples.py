"""Small models with a part: with its defaults, and with one field changed at a time."""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from archetype.checking.values import ATTENTION, BLOCK, EXPERTS, NORM, SIZES, Change, changes, instances
from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.roles.activation import Activation
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.feedforward import FeedForward
from archetype.roles.head import Head
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.position import EmbeddingPosition, MixerPosition
from archetype.roles.residual import Residual
from archetype.roles.router import Router
from archetype.roles.selection import KeySelection
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec
from archetype.spec.kinds import Part

BLOCKS = 2  # equal layers of a model, to detect accidental sharing


class Example(NamedTuple):
    """Small model that contains a part."""

    name: str  # how the part differs from its defaults
    model: ModelSpec


def _layers(**contents: Any) -> dict[str, Any]:
    return {"layers": BLOCKS * [BLOCK | contents], "final_norm": NORM}


def _with_mixer(part: Mixer) -> dict[str, Any]:
    # a mixer that reads the output of other layers follows layers with the same mixer that do not
    layers = _layers(mixer=part.own)
    return layers if part.own == part else layers | {"layers": [*layers["layers"], BLOCK | {"mixer": part}]}


def _with_selection(part: KeySelection) -> dict[str, Any]:
    layers, mixer = _layers(mixer=ATTENTION | {"index": part.own}), ATTENTION | {"index": part}
    return layers if part.own == part else layers | {"layers": [*layers["layers"], BLOCK | {"mixer": mixer}]}


def _with_feedforward(part: FeedForward) -> dict[str, Any]:
    # the embedding computes the per-layer input that the part reads
    per_layer = {"features": part.layer_features} if part.layer_features else None
    wiring = {} if part.reads_input else {"wiring": {"kind": "pre_norm", "norm": "rms", "feedforward_norm": "none"}}
    layers = _layers(feedforward=part, **wiring) | {"embedding": {"per_layer": per_layer}}
    # a delayed part needs a next layer
    return layers | {"layers": [*layers["layers"], BLOCK]} if part.delays_output else layers


def _with_router(part: Router) -> dict[str, Any]:
    layers = _layers(feedforward=EXPERTS | {"router": part.own})
    further = BLOCK | {"feedforward": EXPERTS | {"router": part}}
    return layers if part.own == part else layers | {"layers": [*layers["layers"], further]}


def _with_embedding(part: TokenEmbedding) -> dict[str, Any]:
    if not part.embeds_text:
        return _sides() | {"embedding": part}
    reader = {"mixer": "none", "feedforward": {"kind": "per_layer_input", "features": part.layer_features}}
    layers = _layers(**reader if part.layer_features else {})  # a per-layer input needs a reader
    return layers | {"embedding": part}


def _sides() -> dict[str, Any]:
    decoder = _layers(cross_attention=ATTENTION)
    return {"kind": "encoder_decoder", "encoder": _layers(), "decoder": decoder}


# Fields of a decoder or encoder that contains a part, by role.
PLACES: dict[type[Part], Any] = {
    Mixer: _with_mixer,
    FeedForward: _with_feedforward,
    Norm: lambda part: _layers(wiring={"kind": "pre_norm", "norm": part}) | {"final_norm": part},
    Wiring: lambda part: _layers(wiring=part),
    Residual: lambda part: _layers() | {"residual": part},
    EmbeddingPosition: lambda part: _layers() | {"embedding": {"position": part}},
    MixerPosition: lambda part: _layers(mixer=ATTENTION | {"position": part}),
    Pattern: lambda part: _layers(mixer=ATTENTION | {"pattern": part}),
    KeySelection: _with_selection,
    Activation: lambda part: _layers(feedforward={"kind": "gated", "d_ff": 20, "activation": part}),
    Router: _with_router,
    TokenEmbedding: _with_embedding,
    Head: lambda part: _layers() | {"head": part},
}
AROUND = ("decoder", "encoder")  # kinds of model that parts are put into


def examples(role: type[Part], kind: type[Part], fixed: Mapping[str, Any] | None = None) -> list[Example]:
    """Return models with a kind: its defaults in a decoder and an encoder, small sizes, and every change of a field.

    Args:
        fixed: values of fields that do not change (default: none).

    Raises:
        SpecError: no values of the required fields are valid; the error of the last attempt.
    """
    fixed = dict(fixed or {})
    part, models = _first(role, kind, fixed)
    listed = [Example("defaults", models[0]), *(Example("in an encoder", model) for model in models[1:])]
    changed, refused = [], []
    for change in changes(part):
        if change.field not in fixed:
            valid = list(islice(_changed(role, part, change, fixed), 1))
            changed += valid
            refused += [] if valid else [change.field]
    # a field that depends on another one, such as a part of an additional part
    pairs = (islice(_with_another(role, field, changed, fixed), 1) for field in refused)
    return listed + [Example(name, model) for name, _, model in chain(changed, *pairs)]


def _changed(
    role: type[Part], part: Part, change: Change, fixed: dict[str, Any]
) -> Iterator[tuple[str, Part, ModelSpec]]:
    # name, part and model for each valid value; creating a value may raise an error
    options = iter(change.options)
    while True:
        try:
            value, fields = next(options)
            changed = part.replace(**fields | fixed)
            model = next(_models(role, changed), None)
        except SpecError:
            continue
        except StopIteration:
            return
        if model is not None:
            yield _label(change.field, value), changed, model


def _with_another(
    role: type[Part], field: str, others: list[tuple[str, Part, ModelSpec]], fixed: dict[str, Any]
) -> Iterator[tuple[str, Part, ModelSpec]]:
    # the change of a field, after each change of another field
    for other, part, _ in others:
        for change in changes(part):
            if change.field == field:
                valid = _changed(role, part, change, fixed)
                yield from ((f"{name}, {other}", changed, model) for name, changed, model in valid)


def _first(role: type[Part], kind: type[Part], fixed: Mapping[str, Any]) -> tuple[Part, list[ModelSpec]]:
    for part in instances(kind, fixed):
        if models := list(_models(role, part)):
            return part, models
    return part, [_model(role, part, AROUND[0])]  # raises what is wrong


def _models(role: type[Part], part: Part) -> Iterator[ModelSpec]:
    # distinct models only; a kind of model is itself the model
    seen: list[ModelSpec] = []
    for outer in AROUND if role in PLACES else ("",):
        try:
            model = _model(role, part, outer)
        except SpecError:
            continue
        if model not in seen:
            seen.append(model)
            yield model


def _model(role: type[Part], part: Part, outer: str) -> ModelSpec:
    if isinstance(part, ModelSpec):
        return part
    return ModelSpec.parse_kind({"kind": outer, **SIZES} | PLACES[role](part))  # type: ignore[return-value]


def _label(field: str, value: Any) -> str:
    # such as sinks=true, gate=OutputGate, position.scaling=yarn
    return field if value is None else f"{field}={_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_word, value))
    if isinstance(value, Spec):
        value = getattr(value, "kind", type(value).__name__)
    return str(value).lower() if isinstance(value, bool) else str(value)
