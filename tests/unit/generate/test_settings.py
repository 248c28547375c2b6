"""Settings: what a model folder's generation_config.json says, and what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import ArchetypeError, CheckpointError, SpecError
from archetype.generate import Sampling, generation_config, read_generation_config
from archetype.generate.generation_config import GENERATION_CONFIG
from archetype.settings.generation import SamplingFields


def read(folder: Path, **values: Any) -> Sampling:
    (folder / GENERATION_CONFIG).write_text(json.dumps(values))
    return read_generation_config(folder)[0]


def test_without_a_file_decoding_is_greedy(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == (Sampling(temperature=0.0), {})


def test_without_do_sample_decoding_is_greedy(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=0.7, top_k=5).greedy
    assert read(tmp_path, temperature=0.7, do_sample=False).greedy
    assert read(tmp_path, temperature=0.7, do_sample=None).greedy


def test_what_the_file_says_is_done(tmp_path: Path) -> None:
    values = {
        "max_new_tokens": 9, "repetition_penalty": 1.2, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1
    }  # fmt: skip
    assert read(tmp_path, do_sample=True, **values) == Sampling(**values)
    assert read(tmp_path, do_sample=True, temperature=1, top_p=1) == Sampling()


def test_null_is_nothing_and_no_top_k_may_be_written_as_0(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=True, top_k=0, top_p=None, temperature=None) == Sampling()


def test_other_keys_are_handed_on(tmp_path: Path) -> None:
    read(tmp_path, eos_token_id=[2, 3], bos_token_id=1, top_p=0.5, transformers_version="5.0")
    rest = read_generation_config(tmp_path)[1]
    assert rest == {"eos_token_id": [2, 3], "bos_token_id": 1, "top_p": 0.5, "transformers_version": "5.0"}


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.3, top_k=7, top_p=0.5, min_p=0.25)]
)
def test_settings_are_read_as_they_were_written(tmp_path: Path, sampling: Sampling) -> None:
    assert read(tmp_path, **generation_config(sampling)) == sampling


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("temperature", -0.1, "-0.1 is too small; use at least 0"),
        ("temperature", float("nan"), "nan is not a finite number; use a number"),
        ("temperature", float("inf"), "inf is not a finite number; use a number"),
        ("temperature", "hot", "'hot' is not a finite number; use a number"),
        ("temperature", True, "True is not a finite number; use a number"),
        ("temperature", [1], "a list is not a finite number; use a number"),
        ("top_k", -1, "-1 is too small; use at least 1"),
        ("top_k", 1.5, "1.5 is not a whole number; use a whole number"),
        ("top_k", True, "True is not a whole number; use a whole number"),
        ("top_p", 0, "0 is too small; use more than 0"),
        ("top_p", 1.01, "1.01 is too large; use at most 1"),
        ("top_p", float("nan"), "nan is not a finite number; use a number"),
        ("min_p", -0.1, "-0.1 is too small; use at least 0"),
        ("min_p", 1, "1 is too large; use less than 1"),
        ("repetition_penalty", 0, "0 is too small; use more than 0"),
        ("max_new_tokens", 0, "0 is too small; use at least 1"),
        ("max_new_tokens", 2**40, f"{2**40} is too large; use at most {2**20}"),
        ("do_sample", "no", "'no' is neither true nor false; fix the file"),
        ("do_sample", 1, "1 is neither true nor false; fix the file"),
    ],
)
def test_a_bad_value_is_named_with_file_and_key(tmp_path: Path, key: str, value: Any, what: str) -> None:
    with pytest.raises(ArchetypeError) as caught:
        read(tmp_path, **({"do_sample": True} | {key: value}))
    assert str(caught.value).removesuffix(".0") == f"{tmp_path / GENERATION_CONFIG}: {key}: {what}"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, "1" * 5000])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / GENERATION_CONFIG).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_generation_config(tmp_path)
    assert caught.value.place.startswith(str(tmp_path / GENERATION_CONFIG))


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", -1), ("seed", 2**63), ("stop", [""]), ("stop", [1]), ("ignore_eos", 1)],
)
def test_what_only_a_caller_can_say_is_checked_too(key: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        Sampling.parse({key: value})
    assert caught.value.place.startswith(key)


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"temprature: is not a known key; did you mean temperature\?"):
        Sampling().replace(temprature=1.0)


def test_editors_know_every_setting_as_an_argument() -> None:
    assert set(SamplingFields.__annotations__) == set(Sampling.model_fields)
