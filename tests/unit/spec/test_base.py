"""What all specifications share: identity, and names that cannot be confused."""

import importlib
import pkgutil
from typing import get_args

import pytest
from hypothesis import given

import archetype
from archetype import families, spec
from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.errors import FIELD_NAMES, TAGS_LIKE_FIELDS
from tests.helpers.examples import examples
from tests.helpers.strategies import decoders


@given(decoders(wild=True))
@examples(12)
def test_a_name_changes_no_number(drawn: spec.Decoder) -> None:
    renamed = drawn.replace(name="another")
    assert spec.fingerprint(renamed) == spec.fingerprint(drawn)
    assert renamed.layers == drawn.layers


def test_every_preset_keeps_its_fingerprint_under_another_name() -> None:
    for name in families.presets():
        preset = families.preset(name)
        assert spec.fingerprint(preset.replace(name="another")) == spec.fingerprint(preset)


def test_presets_of_one_fingerprint_are_designs_that_were_published_twice() -> None:
    names: dict[str, list[str]] = {}
    for name in families.presets():
        names.setdefault(spec.fingerprint(families.preset(name)), []).append(name)
    # of these sizes Qwen2.5 is the design of Qwen2, trained on other data; of others length or eps differs
    twice = [[f"qwen2-{size}", f"qwen2.5-{size}"] for size in ("1.5b", "7b", "72b")]
    assert [same for same in names.values() if len(same) > 1] == twice


@given(decoders(), decoders())
@examples(10)
def test_different_specifications_have_different_fingerprints(a: spec.Decoder, b: spec.Decoder) -> None:
    same = a.replace(name="") == b.replace(name="")
    assert (spec.fingerprint(a) == spec.fingerprint(b)) == same


def test_equal_specifications_can_be_keys() -> None:
    assert {spec.RMSNorm(eps=1e-6): 1}[spec.RMSNorm(eps=1e-6)] == 1


def all_specifications() -> set[type[Spec]]:
    for module in pkgutil.walk_packages(archetype.__path__, "archetype."):
        if not module.name.endswith("__main__"):  # which runs
            importlib.import_module(module.name)

    def below(kind: type[Spec]) -> set[type[Spec]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    return {kind for kind in below(Spec) if kind.__module__.startswith("archetype.")}  # and not those of other tests


def test_no_kind_is_named_like_a_field() -> None:
    """Pydantic's locations mix tags of unions with keys of the file; errors keep what is named like a field.

    Whole models are no tags: their kind chooses the class that reads the file. Some kinds are told by their field.
    """
    classes = all_specifications()
    fields = {name for kind in classes for name in kind.model_fields}
    kinds = {
        tag for kind in classes if "kind" in kind.model_fields for tag in get_args(kind.model_fields["kind"].annotation)
    }
    assert {"attention", "rotary", "pre_norm", "gated", "yarn"} < kinds
    assert (kinds - set(spec.ModelSpec.kinds)) & fields == {kind for _, kind in TAGS_LIKE_FIELDS}
    with pytest.raises(SpecError) as error:
        spec.parse({"kind": "decoder", "layers": [{"wiring": {"kind": "parallel", "window": 3}, "mixer": "attention"}]})
    assert "layers[0].wiring.window" in str(error.value)
    assert not {kind.__name__ for kind in classes} & fields
    assert fields <= FIELD_NAMES  # which has those of other tests' parts, too
