"""Several sets of weights in one folder: the one that transformers reads is read, and the other is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype.errors import CheckpointError, Notice
from tests.helpers.published import EXACT, VOCABULARY, text
from tests.helpers.weights import distance, randomize

TOKENS = text(12)
INDEX = "model.safetensors.index.json"


def write(folder: Path, seed: int, **options: Any) -> None:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    model = transformers.LlamaForCausalLM(config)
    randomize(model, seed)
    model.save_pretrained(folder, **options)


def theirs(folder: Path) -> Tensor:
    with torch.no_grad():
        logits: Tensor = transformers.LlamaForCausalLM.from_pretrained(folder).eval()(TOKENS).logits
    return logits


def two_sets(folder: Path) -> None:
    """One in one file, and another of other weights in shards."""
    write(folder, 1, max_shard_size="2KB")
    write(folder / "whole", 2)
    (folder / "whole" / "model.safetensors").rename(folder / "model.safetensors")


def stale_index(folder: Path) -> None:
    """The index of shards that are no longer there, beside the whole file."""
    two_sets(folder)
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()


def named_index(folder: Path) -> None:
    two_sets(folder)
    name_weights(folder, INDEX)


def named_file(folder: Path) -> None:
    two_sets(folder)
    (folder / INDEX).unlink()
    (folder / "whole" / "config.json").unlink()
    write(folder / "third", 3)
    (folder / "third" / "model.safetensors").rename(folder / "ema.safetensors")
    name_weights(folder, "ema.safetensors")


def name_weights(folder: Path, name: str) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"transformers_weights": name}))


@pytest.mark.parametrize(("make", "unread"), [
    (two_sets, INDEX), (stale_index, INDEX), (named_index, "model.safetensors"), (named_file, "model.safetensors"),
])  # fmt: skip
def test_the_set_that_transformers_reads(make: Any, unread: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.warns(Notice, match=f"{unread} is another set of weights, which is not read"):
        model = archetype.load(tmp_path).model
    with torch.no_grad():
        assert distance(model(TOKENS).logits, theirs(tmp_path)) < EXACT


def test_a_pickle_beside_safetensors_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, 1)
    expected = theirs(tmp_path)
    state = {name: 0 * p for name, p in transformers.LlamaForCausalLM.from_pretrained(tmp_path).state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert torch.equal(theirs(tmp_path), expected)
    with torch.no_grad():
        assert distance(archetype.load(tmp_path).model(TOKENS).logits, expected) < EXACT


@pytest.mark.parametrize(("name", "cause"), [
    ("../outside.safetensors", "points outside the model's folder"),
    ("absent.safetensors", "is missing"),
    ("weights.bin", "is not a safetensors file or its index"),
])  # fmt: skip
def test_a_named_file_that_cannot_be_read(name: str, cause: str, tmp_path: Path) -> None:
    write(tmp_path, 1)
    name_weights(tmp_path, name)
    with pytest.raises(CheckpointError, match=f"config.json: transformers_weights: '{name}' {cause}"):
        archetype.load(tmp_path)
