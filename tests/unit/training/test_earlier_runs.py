"""What was written when a run could only learn the next token of a text is read as it was meant."""

import json
from pathlib import Path

import pytest
import torch

from archetype.errors import CheckpointError, SpecError
from archetype.families.t5 import t5
from archetype.models.build import build
from archetype.runs import checkpoints
from archetype.runs.directory import Run, read_run_model, write_run_spec, write_weights
from archetype.training import metrics
from archetype.training.datasets import TextData
from archetype.training.loop import run
from archetype.training.objectives import NextToken
from archetype.training.plot import curves
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from tests.helpers.recipes import recipes
from tests.unit.training.test_resume import steps

CPU = torch.device("cpu")
RECIPE = """
version: 1
spec:
  context_length: 16
  d_model: 16
  layers:
  - repeat: 2
    block:
      wiring:
        kind: pre_norm
        norm: {{kind: rms}}
      mixer:
        kind: attention
        num_heads: 2
        position: {{kind: rotary}}
        dropout: 0.1
      feedforward: {{kind: gated, d_ff: 32, activation: silu}}
      dropout: 0.1
  final_norm: {{kind: none}}
data:
  text: [{text}]
  tokenizer: bytes
{objective}
batch_size: 64
steps: 12
schedule: {{kind: cosine, {warmup}: 3}}
dtype: float32
seed: 5
evaluate_every: 6
evaluate_batches: 2
checkpoint_every: 4
"""


@pytest.fixture
def recipe(recipe: Recipe) -> Recipe:
    """As earlier versions took a text: its end is held out."""
    return recipe.replace(data=recipe.data.replace(split="end"))


@pytest.fixture(params=["", "objective: {kind: next_token}"], ids=["no objective", "next_token"])
def earlier(request: pytest.FixtureRequest, text_file: Path) -> str:
    return RECIPE.format(text=text_file, objective=request.param, warmup="warmup_steps")


def test_a_key_that_is_called_otherwise_now_is_refused_with_its_file(text_file: Path, tmp_path: Path) -> None:
    """The weights of such a run are read as before: that reads no recipe."""
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.format(text=text_file, objective="", warmup="warmup"))
    with pytest.raises(SpecError) as caught:
        read_recipe(file)
    assert str(caught.value) == f"{file}: schedule.warmup: is now called warmup_steps; write warmup_steps"


def test_a_recipe_without_a_kind_of_data_is_about_text(earlier: str, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(earlier)
    read = read_recipe(tmp_path / "recipe.yaml")
    assert read.data == TextData(text=(str(text_file),), tokenizer="bytes")
    assert read.objective in (None, NextToken())
    for data in ({}, {"data": {}}, {"data": {"text": ["a"]}}, {"objective": {"kind": "next_token"}}):
        assert isinstance(Recipe.parse(data).data, TextData)


def test_an_earlier_run_is_known_again(recipe: Recipe, tmp_path: Path) -> None:
    """The two hashes stood in a checkpoint of version 0.1.0, made of this recipe and this text."""
    provenance = start(tmp_path / "run", recipe, CPU).provenance()
    assert provenance["spec"] == "edc7fe399f4dac33"
    assert provenance["data"] == "0d339f8587367a3f3e915c33989aeab437bc8cb17cc6b44d27d53cffaa110f29"


def test_an_earlier_run_directory_goes_on_to_the_bit(text_file: Path, recipe: Recipe, tmp_path: Path) -> None:
    earlier = RECIPE.format(text=text_file, objective="", warmup="warmup_steps")
    whole = start(tmp_path / "whole", recipe.replace(dtype="float32"), CPU)
    expected = [step.loss for step in steps(whole)]
    first = start(tmp_path / "run", recipe.replace(dtype="float32"), CPU)
    steps(first, 8)
    first.run.recipe_file.write_text(earlier)
    first.run.provenance_file.unlink()
    lines = [{"step": n, "loss": 5.5, "learning_rate": 1e-3, "gradient_norm": 0.1, "tokens_per_second": 9.0,
              "skipped": False} for n in range(1, 9)]  # fmt: skip
    lines.insert(6, {"step": 6, "validation_loss": 5.4, "validation_bits_per_byte": 7.9, "validation_tokens": 912})
    first.run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = resume(tmp_path / "run", CPU)
    assert state.step == 8
    assert run(state, lambda event: None) is None
    measured = metrics.read(state.run.metrics_file)
    assert [line["loss"] for line in measured if line["step"] > 8 and "loss" in line] == expected[8:]
    training, held_out, _ = curves(measured)
    assert (training[0], held_out[0]) == (list(range(1, 13)), [6, 12])
    assert all(torch.equal(*pair) for pair in zip(state.model.parameters(), whole.model.parameters(), strict=True))


def test_a_checkpoint_without_what_later_ones_say_is_refused_in_words(recipe: Recipe, tmp_path: Path) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    checkpoints.write(state.run.checkpoints, 1, state.model.state_dict(), {}, {"versions": {}})
    with pytest.raises(CheckpointError, match="the architecture is not the one that this run began with"):
        resume(tmp_path / "run", CPU)


def test_weights_of_an_earlier_encoder_decoder_are_read_once_its_keys_are_edited(tmp_path: Path) -> None:
    run, sizes = Run(tmp_path), {"num_layers": 1, "d_model": 8, "num_heads": 2, "head_dim": 4, "d_ff": 8}
    model = build(t5(**sizes, vocab_size=13, context_length=16), seed=0)
    assert "decoder.blocks.0.cross.q.weight" in model.state_dict()  # a name in files, which stays
    write_run_spec(run, model.spec)
    write_weights(run, model)
    edited = run.spec_file.read_text()
    run.spec_file.write_text(edited.replace("cross_attention:", "cross:"))
    with pytest.raises(SpecError, match=r"spec\.yaml: decoder\.layers\[0\]\.cross: is now called cross_attention"):
        read_run_model(run)
    run.spec_file.write_text(edited)
    weights = read_run_model(run).state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_an_earlier_encoder_decoder_goes_on_once_its_keys_are_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash was computed of this specification by version 0.1.0, which wrote `cross` for cross-attention."""
    recipe = recipes(tmp_path)["pairs"]
    state = start(tmp_path / "run", recipe.replace(spec=recipe.spec | {"vocab_size": 300}), CPU)  # type: ignore[operator]
    earlier = {"spec": "111cd04272ea62c8", "data": state.objective.fingerprint}
    monkeypatch.setattr(TrainState, "provenance", lambda state: earlier)
    steps(state, 4)
    monkeypatch.undo()
    spec_file, edited = state.run.spec_file, state.run.spec_file.read_text()
    spec_file.write_text(edited.replace("cross_attention:", "cross:"))
    with pytest.raises(SpecError, match=r"cross: is now called cross_attention; write cross_attention"):
        resume(tmp_path / "run", CPU)
    spec_file.write_text(edited)
    assert resume(tmp_path / "run", CPU).step == 4
    spec_file.write_text(edited.replace("gelu", "relu"))
    with pytest.raises(CheckpointError, match="the architecture is not the one"):
        resume(tmp_path / "run", CPU)
