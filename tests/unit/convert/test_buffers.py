"""What a model remembers beside its parameters travels with them: running statistics of a norm over batches."""

from pathlib import Path

import pytest
import torch

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.errors import CheckpointError
from archetype.families.gpt2 import gpt2
from archetype.io.tensors import Tensors, save
from archetype.io.weight_files import SINGLE
from archetype.models.build import Model, build
from archetype.runs.directory import Run, read_run_model, write_run_spec, write_weights
from tests.helpers.weights import randomize

NORM = spec.BatchNorm()
PLAIN = gpt2(num_layers=1, d_model=8, num_heads=2, vocab_size=13, context_length=16)
BLOCK = PLAIN.layers[0]
NORMED = PLAIN.replace(layers=(BLOCK.replace(wiring=spec.PreNorm(norm=NORM)),), final_norm=NORM)
NAMES = {f"{norm}.running_{what}" for norm in ("blocks.0.mixer_norm", "blocks.0.feedforward_norm", "final_norm")
         for what in ("mean", "var")}  # fmt: skip


@pytest.fixture
def model() -> Model:
    """With statistics of some batches."""
    model = randomize(build(NORMED)).train()
    with torch.no_grad():
        for seed in range(3):
            model(torch.randint(13, (4, 8), generator=torch.Generator().manual_seed(seed)))
    return model.eval()  # type: ignore[return-value]


def test_statistics_are_in_the_file_and_read_from_it(model: Model, tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_run_spec(run, NORMED)
    write_weights(run, model)
    file = Tensors.single(run.weights_file)
    assert {name for name in file.names() if "running" in name} == NAMES
    read = read_run_model(run)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in read.state_dict().items())
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        logits = model(tokens).logits
        assert torch.equal(read(tokens).logits, logits)
        assert not torch.allclose(randomize(build(NORMED))(tokens).logits, logits)  # the same weights alone


def test_they_follow_a_type_and_a_saved_copy(model: Model, tmp_path: Path) -> None:
    LanguageModel(NORMED, model).save(tmp_path / "run")
    buffers = dict(load(tmp_path / "run", torch.float64).model.named_buffers())
    assert buffers.keys() == NAMES
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float64}
    assert all(torch.equal(value.float(), model.state_dict()[name]) for name, value in buffers.items())


def test_a_file_without_them_is_refused(model: Model, tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_run_spec(run, NORMED)
    save(tmp_path / SINGLE, dict(model.named_parameters()))
    with pytest.raises(CheckpointError) as caught:
        read_run_model(run)
    assert "blocks.0.feedforward_norm.running_mean: this tensor is missing (and 5 more: " in str(caught.value)


def test_they_lose_no_digit_where_weights_do(model: Model, tmp_path: Path) -> None:
    """A router's correction, rounded, would choose other experts."""
    LanguageModel(NORMED, model).save(tmp_path / "run")
    read = load(tmp_path / "run", torch.bfloat16).model
    assert {parameter.dtype for parameter in read.parameters()} == {torch.bfloat16}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in read.named_buffers())
