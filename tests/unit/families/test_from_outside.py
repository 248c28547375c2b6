"""A family from outside is read, written back, and named where it is missing; its tutorial runs another one."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.errors import SpecError, UnknownFamily
from archetype.families import FAMILIES, Family, Format, family_for, published, register_family
from archetype.families import registry as families
from archetype.families.family import tiny
from archetype.families.llama import KEYS, RULES, llama
from archetype.models.build import build
from tests.helpers.weights import randomize

PRESETS = tiny(partial(llama, num_layers=2), {"tide-tiny": dict(num_heads=4, num_kv_heads=2, d_ff=40)})
TIDE = Family("tide", PRESETS, Format("tide", "TideForCausalLM", KEYS, RULES, "model."))


@pytest.fixture(autouse=True)
def families_as_before() -> Iterator[None]:
    yield
    families._from_outside.clear()
    families.published.cache_clear()
    families.presets.cache_clear()


def test_a_family_is_read_and_written_back_to_the_bit(tmp_path: Path) -> None:
    register_family(TIDE)
    assert published()["tide"] is TIDE and "tide" in list(FAMILIES) and len(list(FAMILIES)) == len(FAMILIES)
    spec = archetype.load_spec("tide-tiny")
    assert family_for(spec).name == "llama"  # the package's come first where nothing says another
    export(LanguageModel(spec, randomize(build(spec))), tmp_path / "folder", "tide")
    lm = archetype.load(tmp_path / "folder")
    assert lm.family is TIDE
    lm.save(tmp_path / "run")
    assert export(archetype.load(tmp_path / "run"), tmp_path / "again") is TIDE
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "folder" / name).read_bytes()
    families._from_outside.clear()
    with pytest.warns(UnknownFamily, match="this model was imported as tide, a family that is not registered"):
        assert archetype.load(tmp_path / "run").family is None


def test_a_name_that_is_taken_is_refused() -> None:
    for family, cause in (
        (Family("llama", {}), "llama: a family of this name is already registered; choose another name"),
        (Family("tides", {}, TIDE.published), "tides: its format has the model_type tide; use the same name for both"),
        (Family("tides", {"gpt2": PRESETS["tide-tiny"]}), "gpt2: a preset of this name is already registered;"),
    ):
        with pytest.raises(SpecError) as error:
            register_family(family)
        assert str(error.value).startswith(cause)
    assert "tides" not in FAMILIES
