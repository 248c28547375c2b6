"""The JSON Schema that editors check specification files with."""

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from archetype import families, spec
from archetype.errors import SpecError
from archetype.spec import describe
from archetype.training.recipe import Recipe
from tests.helpers.examples import examples
from tests.helpers.presets import PRESETS
from tests.helpers.strategies import decoders


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    document = spec.json_schema()
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_accepted(name: str, schema: Draft202012Validator) -> None:
    schema.validate(families.preset(name).dump())


@given(drawn=decoders(wild=True))
@examples(15)
def test_every_specification_is_accepted(drawn: spec.Decoder, schema: Draft202012Validator) -> None:
    schema.validate(drawn.dump())


def misspelt(data: Any, place: str = "") -> list[tuple[str, Any]]:
    """One copy for every key of every mapping, with that key's last letter doubled."""
    copies: list[tuple[str, Any]] = []
    for key in data if isinstance(data, dict) else range(len(data)):
        if isinstance(data, dict):
            copies.append((f"{place}.{key}", {k + k[-1] if k == key else k: v for k, v in data.items()}))
        if isinstance(data[key], dict | list):
            for name, inner in misspelt(data[key], f"{place}.{key}"):
                outer = copy.copy(data)
                outer[key] = inner
                copies.append((name, outer))
    return copies


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


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every property of every mapping that a schema describes."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            yield from properties(inner)


def test_threads_describe_at_once() -> None:
    # a new process, so that no kind is loaded yet and no class is built
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from archetype import spec
sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(4) as pool:
    documents = list(pool.map(lambda _: spec.json_schema(), range(8)))
assert all(document == documents[0] for document in documents)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_field_has_its_description() -> None:
    """One for each attribute, next to it, and none for an attribute that is not there."""
    for schema, least in ((spec.json_schema(), 250), (Recipe.model_json_schema(), 40)):
        fields = list(properties(schema))
        assert len(fields) > least
        assert [name for name, field in fields if not field.get("description")] == []
    classes = [cls for _, cls in describe.kinds()] + [spec.Block, spec.Embedding, spec.Stack, spec.ProjectionBiases]
    for cls in classes:
        described = set(re.findall(r"^ {8}(\w+): ", (cls.__doc__ or "").partition("Attributes:")[2], re.MULTILINE))
        assert described <= cls.model_fields.keys()
    assert "Attributes:" not in str(spec.json_schema())


def test_a_kind_is_explained_with_its_source_and_fields() -> None:
    text = describe.explain("rotary")
    assert text.startswith("rotary (mixer position)\n\nRotary position embedding") and "(Su 2021)" in text
    assert "| `theta` | `10000.0` | base of the frequencies. |" in text
    assert "| `num_heads` | required | query heads, H. |" in describe.explain("attention")
    assert describe.explain("none").count("(") >= 6  # of norms, positions, feed-forward parts, heads, ...
    assert describe.explain("rope") == f"rope is written here as kind: rotary\n\n{text}"
    assert describe.explain("swiglu").startswith(
        "swiglu is written here as kind: gated with activation: silu\n\ngated ("
    )
    with pytest.raises(SpecError, match=r"^rotory: is not a kind of part or model \(.*\); did you mean rotary\?$"):
        describe.explain("rotory")


def test_the_page_of_all_kinds_is_up_to_date() -> None:
    """`python -m archetype.spec.describe > docs/kinds.md` writes it."""
    assert Path("docs/kinds.md").read_text(encoding="utf-8") == describe.page()
