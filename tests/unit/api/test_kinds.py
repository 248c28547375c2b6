"""The class of a loaded model: it has the methods that this kind of model supports, and no others."""

import copy
import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import archetype
from archetype import LanguageModel, spec
from archetype.api.kinds import KINDS
from archetype.errors import ArchetypeError, WrongKind
from archetype.models.spec import ModelSpec
from archetype.settings.generation import Sampling

CLASSES = spec.ClassificationHead(num_classes=2, bias=False)
# Of each preset and head: the class, a method that it has, and one that only other classes have.
MODELS: dict[str, tuple[str, dict[str, Any], type[LanguageModel], str, str]] = {
    "decoder": ("llama-tiny", {}, archetype.DecoderLM, "embed", "fill"),
    "decoder of classes": ("llama-tiny", {"head": CLASSES}, archetype.TextEncoder, "classify", "generate"),
    "decoder without a head": ("llama-tiny", {"head": spec.NoHead()}, archetype.TextEncoder, "embed", "score"),
    "n-gram": ("bigram-tiny", {}, archetype.CausalLM, "score", "embed"),
    "byte patches": ("megabyte-tiny", {}, archetype.CausalLM, "chat", "embed"),
    "encoder": ("bert-tiny", {}, archetype.TextEncoder, "fill", "stream"),
    "pair": ("transformer-tiny", {}, archetype.Seq2SeqLM, "translate", "chat"),
    "pair of classes": ("transformer-tiny", {"head": CLASSES}, archetype.TextClassifier, "classify", "engine"),
    "images": ("vit-tiny", {}, archetype.ImageEncoder, "images", "classify_tokens"),
}


def model_spec(name: str) -> ModelSpec:
    preset, changes, *_ = MODELS[name]
    return archetype.load_spec(preset).replace(**changes)


def language_model(name: str, **fields: Any) -> LanguageModel:
    of = model_spec(name)
    return LanguageModel(of, archetype.build(of, device="meta"), **fields)


@pytest.mark.parametrize("name", MODELS)
def test_each_kind_has_its_methods_and_no_others(name: str) -> None:
    lm = language_model(name)
    kind, present, absent = MODELS[name][2:]
    assert type(lm) is kind and isinstance(lm, LanguageModel)
    assert hasattr(lm, present) and not hasattr(lm, absent) and any(hasattr(other, absent) for other in KINDS)
    with pytest.raises(ArchetypeError) as refused:
        getattr(lm, absent)
    assert isinstance(refused.value, AttributeError) and isinstance(refused.value, WrongKind)
    cause = f"a model of kind {lm.spec.kind} with head {lm.spec.head.kind} cannot do this"
    assert str(refused.value).startswith(f"model: {cause}; it can ")
    assert pickle.loads(pickle.dumps(refused.value)).cause == cause


def test_a_name_that_no_kind_has_is_a_plain_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ImageEncoder' object has no attribute 'clasify'") as refused:
        getattr(language_model("images"), "clasify")  # noqa: B009
    assert not isinstance(refused.value, ArchetypeError)


def test_a_copy_is_of_the_same_kind() -> None:
    lm = language_model("encoder")
    assert type(replace(lm, sampling=Sampling())) is type(copy.copy(lm)) is archetype.TextEncoder
    assert copy.copy(lm).spec == lm.spec


def test_keyword_arguments_choose_the_kind_too() -> None:
    of = model_spec("images")
    assert type(LanguageModel(spec=of, model=archetype.build(of, device="meta"))) is archetype.ImageEncoder


def test_a_kind_loads_only_its_models(tmp_path: Path) -> None:
    of = model_spec("n-gram")
    LanguageModel(of, archetype.build(of)).save(tmp_path / "run")
    assert type(archetype.load(tmp_path / "run", device="cpu")) is archetype.CausalLM
    lm = archetype.CausalLM.load(tmp_path / "run", device="cpu", dtype="bfloat16")
    assert next(lm.model.parameters()).dtype.itemsize == 2
    assert type(LanguageModel.load(tmp_path / "run", device="cpu")) is archetype.CausalLM
    with pytest.raises(WrongKind, match="a model of kind ngram with head language_model cannot do this; it can gen"):
        archetype.Seq2SeqLM.load(tmp_path / "run", device="cpu")


def test_load_of_a_kind_has_the_arguments_of_load() -> None:
    from archetype.api.language_model import LoadOptions

    assert {"folder", *LoadOptions.__annotations__} == set(inspect.signature(archetype.load).parameters)
