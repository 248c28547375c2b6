"""Every class that a file can name has a module, a cost, a state, and a strategy that draws it."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, Literal, get_args

import pytest
import torch
from hypothesis import Phase, given, seed, settings
from pydantic.fields import FieldInfo

from archetype import cost, spec
from archetype.estimate.memory import MemoryCost
from archetype.models.build import build
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.parts.norm.module import NoNorm
from archetype.spec.registry import PROVIDED
from tests.helpers.strategies import (
    CONTEXT,
    decoders,
    encoder_decoders,
    encoders,
    megabytes,
    ngrams,
    vision_encoders,
)
from tests.unit.cost.test_parameters import agrees

MODELS = (decoders, encoders, encoder_decoders, ngrams, megabytes, vision_encoders)
EXAMPLES = 10  # of each kind of model, as often as a rare class needs, up to
ATTEMPTS = 40
LENGTH = 7


def nameable() -> set[type[spec.Spec]]:
    """All classes with a `kind` that a specification can hold, found from field to field."""
    seen: set[type[spec.Spec]] = set()
    ahead: list[type[spec.Spec]] = list(spec.ModelSpec.kinds.values())
    while ahead:
        cls = ahead.pop()
        if cls not in seen:
            seen.add(cls)
            ahead += [inner for field in cls.model_fields.values() for inner in _classes(field)]
    return {cls for cls in seen if "kind" in cls.model_fields}


def _classes(annotation: Any) -> Iterator[type[spec.Spec]]:
    """The classes within an annotation, however it wraps them."""
    if isinstance(annotation, FieldInfo):
        for metadata in annotation.metadata:
            if isinstance(metadata, spec.ByKind):
                yield from metadata.kinds().values()
        annotation = annotation.annotation
    if isinstance(annotation, type) and issubclass(annotation, spec.Spec):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def held(part: Any) -> Iterator[type[spec.Spec]]:
    """The classes of all parts of a specification."""
    if isinstance(part, spec.Spec):
        yield type(part)
        for name in type(part).model_fields:
            yield from held(getattr(part, name))
    elif isinstance(part, tuple):
        for one in part:
            yield from held(one)


@pytest.fixture(scope="module")
def drawn() -> dict[type[spec.Spec], spec.ModelSpec]:
    """Of each class a model that holds it, rather one with a state, of those that properties are tested with."""
    model_by_class: dict[type[spec.Spec], spec.ModelSpec] = {}

    for attempt, strategy in product(range(ATTEMPTS), MODELS):

        @seed(attempt)
        @given(strategy())
        @settings(max_examples=EXAMPLES, phases=(Phase.generate,))
        def collect(model: spec.ModelSpec) -> None:
            for cls in set(held(model)):
                if cls not in model_by_class or (remembers(model) and not remembers(model_by_class[cls])):
                    model_by_class[cls] = model

        if attempt < 2 or not model_by_class.keys() >= nameable():
            collect()
    return model_by_class


def remembers(model: spec.ModelSpec) -> bool:
    """Whether it writes a text token by token."""
    return not isinstance(model, spec.Encoder | spec.VisionEncoder)


def lacks(example: spec.ModelSpec | None) -> list[str]:
    """What is missing of a class, of which an example is given where a strategy draws one."""
    if example is None:
        return ["strategy"]
    rules = {"module": built, "parameters": agrees, "cost": costed, "state": kept}
    missing = []
    for name, rule in rules.items():
        try:
            rule(example)
        except Exception:  # whatever is missing shows in its own way
            missing.append(name)
    return missing


lacks_once = cache(lacks)  # one example is that of many classes


def built(model: spec.ModelSpec) -> None:
    assert build(model).spec == model


def costed(model: spec.ModelSpec) -> None:
    report = cost.cost_report(model, batch=2, length=None if isinstance(model, spec.VisionEncoder) else LENGTH)
    assert report.flops["forward"] > 0
    assert report.memory["training_peak"] > report.memory["weights"] > 0
    assert report.to_json()["modules"]


def kept(model: spec.ModelSpec) -> None:
    """What decoding keeps is what the cost says, at a length below the context and at the context."""
    if not remembers(model):
        return
    built_model = build(model)
    for length in (LENGTH, CONTEXT):
        if isinstance(built_model, EncoderDecoder):
            source = torch.zeros(2, length, dtype=torch.long)
            state = built_model.new_state(source, capacity=length)
        else:
            state = built_model.new_state(2, length)
        assert state.nbytes == MemoryCost(model, "float32").state(2, length)


@pytest.mark.parametrize("cls", sorted(nameable(), key=lambda cls: cls.__name__))
def test_every_class_is_built_counted_kept_and_drawn(
    cls: type[spec.Spec], drawn: dict[type[spec.Spec], spec.ModelSpec]
) -> None:
    assert lacks_once(drawn.get(cls)) == [], drawn.get(cls)


def test_every_exported_kind_can_stand_in_a_file() -> None:
    """An adapter stands in a recipe."""
    exported = {cls for cls in map(spec.__getattr__, dir(spec)) if isinstance(cls, type) and issubclass(cls, spec.Spec)}
    in_models = {cls for cls in exported if not issubclass(cls, spec.Adapter)}
    assert {cls for cls in in_models if "kind" in cls.model_fields} == nameable()


# The test of the test: classes that nobody knows.


class UnknownNorm(spec.Norm):
    kind: Literal["unknown"] = "unknown"


class UnknownMixer(spec.Mixer):
    kind: Literal["unknown"] = "unknown"


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fallback that counts the parts of extensions."""
    monkeypatch.setattr("archetype.cost.registry._fallback", None)


def decoder_of(block: spec.Block) -> spec.Decoder:
    return spec.Decoder(vocab_size=5, context_length=CONTEXT, d_model=4, layers=(block,), final_norm=spec.RMSNorm())


def with_unknown_norm() -> spec.Decoder:
    wiring = spec.PreNorm.model_construct(norm=UnknownNorm())
    return decoder_of(spec.Block(wiring=wiring, mixer=spec.GRU()))


def with_unknown_mixer() -> spec.Decoder:
    block = spec.Block.model_construct(
        wiring=spec.Plain(),
        mixer=UnknownMixer(),
        cross_attention=None,
        feedforward=spec.NoFeedForward(),
        dropout=0.0,
        residual_scale=1.0,
    )
    return decoder_of(block)


def test_a_class_of_an_open_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UnknownNorm not in nameable()
    monkeypatch.setitem(spec.Norm.kinds, "unknown", UnknownNorm)
    assert UnknownNorm in nameable()


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_class_that_nobody_knows_lacks_all(drawn: dict[type[spec.Spec], spec.ModelSpec]) -> None:
    assert lacks(drawn.get(UnknownNorm)) == ["strategy"]
    assert lacks(with_unknown_norm()) == ["module", "parameters", "cost", "state"]
    assert lacks(with_unknown_mixer()) == ["module", "parameters", "cost", "state"]
    assert lacks(decoder_of(spec.Block(wiring=spec.Plain(), mixer=spec.GRU()))) == []


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_module_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm is built; nobody counts it."""
    monkeypatch.setitem(PROVIDED, ("module", UnknownNorm), NoNorm)
    assert lacks(with_unknown_norm()) == ["parameters", "cost"]


def test_a_state_of_another_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    example = decoder_of(spec.Block(wiring=spec.Plain(), mixer=spec.GRU()))
    monkeypatch.setattr("archetype.parts.recurrent.cost.GRUCost.state", lambda cost, length: cost.d.value + 1)
    assert lacks(example) == ["state"]
