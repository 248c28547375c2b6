"""Every class that a file can name has a strategy that draws it; test_every_kind.py checks it."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, get_args

import pytest
from hypothesis import Phase, given, seed, settings
from pydantic.fields import FieldInfo

from archetype import spec
from tests.helpers.combinations import hybrid
from tests.helpers.strategies import (
    Place,
    attentions,
    compressed_attentions,
    decoders,
    encoder_decoders,
    encoder_heads,
    encoders,
    feedforwards,
    key_selections,
    linear_mixers,
    megabytes,
    ngrams,
    norms,
    patterns,
    relative_vectors,
    residuals,
    routers,
    scalings_by_pair,
    sentence_heads,
    vision_encoders,
)

MODELS = (decoders(), encoders(), encoder_decoders(), ngrams(), megabytes(), vision_encoders())
# what the models are made of, and one of which has few, is drawn in a hundredth of a model's time
PARTS = (
    norms(), patterns(causal=False), encoder_heads(), sentence_heads(), residuals(hybrid().layers), scalings_by_pair(2),
    relative_vectors(), key_selections(), compressed_attentions(), routers(), feedforwards(causal=False),
)  # fmt: skip
EXAMPLES = [(strategy, 20) for strategy in PARTS] + [(linear_mixers(), 100), (attentions(Place(8)), 50)]
# values that saturate exactly hide that a token changes an output; DynamicTanh stands for it
NOT_DRAWN = {spec.DynamicErf}
ATTEMPTS = 40  # as often as a rare class needs


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
            yield from _classes(metadata)
        annotation = annotation.annotation
    if isinstance(annotation, spec.ByKind):
        yield from annotation.kinds().values()
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
def drawn() -> set[type[spec.Spec]]:
    """The classes that are held by the models that properties are tested with, and by their parts."""
    classes = set[type[spec.Spec]]()
    models = ((0, (strategy, 10)) for strategy in MODELS)
    for attempt, (strategy, examples) in (*models, *product(range(ATTEMPTS), EXAMPLES)):

        @seed(attempt)
        @given(strategy)
        @settings(max_examples=examples, phases=(Phase.generate,))
        def collect(part: spec.Spec) -> None:
            classes.update(held(part))

        if not classes >= nameable() - NOT_DRAWN:
            collect()
    return classes


def test_every_class_is_drawn(drawn: set[type[spec.Spec]]) -> None:
    assert nameable() - drawn == NOT_DRAWN


def test_every_exported_kind_can_stand_in_a_file() -> None:
    """An adapter stands in a recipe."""
    exported = {cls for cls in map(spec.__getattr__, dir(spec)) if isinstance(cls, type) and issubclass(cls, spec.Spec)}
    in_models = {cls for cls in exported if not issubclass(cls, spec.Adapter)}
    assert {cls for cls in in_models if "kind" in cls.model_fields} == nameable()


class UnknownNorm(spec.Norm):
    """The test of the test: a class that nobody knows."""

    kind: Literal["unknown"] = "unknown"


def test_a_class_of_an_open_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UnknownNorm not in nameable()
    monkeypatch.setitem(spec.Norm.kinds, "unknown", UnknownNorm)
    assert UnknownNorm in nameable()
