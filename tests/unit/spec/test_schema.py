"""The JSON Schema that editors check specification files with."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from archetype import families, spec
from tests.helpers.strategies import decoders


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    made = spec.json_schema()
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(made)


@pytest.mark.parametrize("name", sorted(families.presets()))
def test_every_preset_is_accepted(name: str, schema: Draft202012Validator) -> None:
    schema.validate(families.preset(name).dump())


@given(drawn=decoders(wild=True))
@settings(max_examples=60)
def test_every_specification_is_accepted(drawn: spec.Decoder, schema: Draft202012Validator) -> None:
    schema.validate(drawn.dump())


def misspelt(data: Any, place: str = "") -> list[tuple[str, Any]]:
    """One copy for every key of every mapping, with that key's last letter doubled."""
    found: list[tuple[str, Any]] = []
    for key in data if isinstance(data, dict) else range(len(data)):
        if isinstance(data, dict):
            found.append((f"{place}.{key}", {k + k[-1] if k == key else k: v for k, v in data.items()}))
        if isinstance(data[key], dict | list):
            for name, inner in misspelt(data[key], f"{place}.{key}"):
                outer = copy.copy(data)
                outer[key] = inner
                found.append((name, outer))
    return found


LONG = spec.assign(
    families.preset("llama-3.2-1b"),
    ["layers[0].feedforward.d_ff={kind: eight_thirds, multiple_of: 8}", "head.tied=true",
     "layers[0].feedforward.activation={kind: swish, beta: 2.0}", "layers[0].mixer.bias={q: true}",
     "embedding={position: {kind: sinusoidal, theta: 5.0}, scale: 2.0}"],
)  # fmt: skip


@pytest.mark.parametrize(("key", "data"), [pytest.param(key, data, id=key) for key, data in misspelt(LONG.dump())])
def test_a_misspelt_key_is_refused(key: str, data: dict[str, Any], schema: Draft202012Validator) -> None:
    assert not schema.is_valid(data)


@pytest.mark.parametrize("change", [{"d_model": 0}, {"d_model": "64"}, {"layers": []}, {"version": 2}, {"name": 3}])
def test_a_wrong_value_is_refused(change: dict[str, Any], schema: Draft202012Validator) -> None:
    assert not schema.is_valid(families.preset("llama-tiny").dump() | change)
