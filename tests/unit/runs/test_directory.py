"""A run directory is a model: what was written is what is read."""

import shutil
from pathlib import Path

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.errors import ArchetypeError, CheckpointError
from archetype.generate import Sampling
from archetype.io.weight_files import SINGLE
from archetype.models.build import Model
from archetype.runs import checkpoints as training
from archetype.runs.directory import Run, read_run_model, read_run_spec, weights_of, write_run_spec, write_weights
from archetype.tokenizers import train_tokenizer
from tests.unit.convert.test_apply import equal, mapped, needs_maps


@pytest.fixture
def run(models: dict[str, Model], name: str, tmp_path: Path) -> Run:
    directory = Run(tmp_path)
    write_run_spec(directory, models[name].spec)
    write_weights(directory, models[name])
    return directory


def test_a_run_is_read_as_it_was_written(models: dict[str, Model], name: str, run: Run) -> None:
    assert run.exists
    assert read_run_spec(run) == models[name].spec
    read = read_run_model(run)
    assert equal(read, models[name])
    assert not read.training


@needs_maps
def test_the_weights_of_a_run_are_views_of_its_file(run: Run) -> None:
    read = read_run_model(run)
    assert mapped(read, run.weights_file) == {parameter for parameter, _ in read.named_parameters()}


def test_weights_are_converted_on_request(run: Run) -> None:
    assert {p.dtype for p in read_run_model(run, torch.bfloat16).parameters()} == {torch.bfloat16}


def test_an_unfinished_run_is_its_newest_checkpoint(models: dict[str, Model], tmp_path: Path) -> None:
    run, model = Run(tmp_path), models["llama"]
    write_run_spec(run, model.spec)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    training.write(run.checkpoints, 1, zeros, {}, {})
    newest = training.write(run.checkpoints, 2, dict(model.named_parameters()), {}, {})
    assert weights_of(run) == newest.weights_file
    assert equal(read_run_model(run), model)
    write_weights(run, model)
    assert weights_of(run) == run.weights_file


def test_a_run_without_weights_is_named(models: dict[str, Model], tmp_path: Path) -> None:
    write_run_spec(Run(tmp_path), models["gpt2"].spec)
    with pytest.raises(CheckpointError, match="has no weights yet; train it further with `archetype train --resume`"):
        read_run_model(Run(tmp_path))


@pytest.mark.parametrize("name", ["llama"])
def test_weights_of_another_specification_are_refused_by_file_and_tensor(models: dict[str, Model], run: Run) -> None:
    spec = models["llama"].spec
    write_run_spec(run, spec.replace(vocab_size=14))
    with pytest.raises(CheckpointError) as caught:
        read_run_model(run)
    assert caught.value.place == f"{run.weights_file}: embedding.token.weight"
    write_run_spec(run, spec.replace(layers=spec.layers * 2))
    with pytest.raises(CheckpointError, match=r"this tensor is missing \(and 17 more: ") as caught:
        read_run_model(run)
    assert caught.value.place == f"{run.weights_file}: blocks.2.feedforward.down.weight"


@pytest.mark.parametrize("name", ["gpt2"])
def test_damaged_weights_are_named_once(run: Run) -> None:
    run.weights_file.write_bytes(run.weights_file.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        read_run_model(run)
    assert caught.value.place == str(run.weights_file)


@pytest.mark.parametrize("name", ["gpt2"])
def test_a_damaged_specification_is_named(run: Run) -> None:
    run.spec_file.write_text("d_model: [")
    with pytest.raises(ArchetypeError) as caught:
        read_run_model(run)
    assert caught.value.place.startswith(str(run.spec_file))


def test_a_language_model_is_saved_and_loaded_whole(models: dict[str, Model], tmp_path: Path) -> None:
    model, tokenizer = models["llama"], train_tokenizer("characters", "hello world", None)
    lm = LanguageModel(model.spec, model, tokenizer, Sampling(temperature=0.7, top_k=5), {"eos_token_id": 3})
    lm.save(tmp_path / "run")
    read = load(tmp_path / "run")
    assert (read.spec, read.sampling, read.special["eos_token_id"]) == (lm.spec, lm.sampling, 3)
    assert equal(read.model, model)
    assert read.tokenizer.encode("hello") == tokenizer.encode("hello")
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    assert load(tmp_path / "run").tokenizer is None


def test_a_run_is_never_written_over(models: dict[str, Model], tmp_path: Path) -> None:
    lm = LanguageModel(models["gpt2"].spec, models["gpt2"])
    lm.save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="run: already exists"):
        lm.save(tmp_path / "run")
    assert (tmp_path / "run" / SINGLE).is_file()
