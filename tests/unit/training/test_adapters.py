"""A run with an adapter: the model stays as it is, what is resumed is what was interrupted, and every verb takes it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from archetype.api import loading
from archetype.api.pretrained import open_pretrained
from archetype.apps.cli.convert import export as export_verb
from archetype.errors import SpecError
from archetype.runs.directory import Run, read_run_model
from archetype.spec import DoRA
from archetype.training.optimizers import optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")


def test_an_adapter_learns_alone_resumes_to_the_bit_and_is_merged(tmp_path: Path, recipe: Recipe) -> None:
    assert isinstance(recipe.spec, dict)
    recipe = recipe.replace(spec=recipe.spec | {"final_norm": {"kind": "rms"}})  # as in Llama
    steps(start(tmp_path / "base", recipe.replace(steps=2), CPU))
    tuned = recipe.replace(
        adapter=DoRA(rank=2, dropout=0.1, targets=("q", "blocks.1.feedforward.*")), trainable=("blocks.0.mixer_norm",)
    )
    whole = start(tmp_path / "whole", tuned, CPU, pretrained=open_pretrained(tmp_path / "base"))
    expected = [measured(step) for step in steps(whole)]
    names = {name.partition(":")[0] for name in optimizer_tensors(whole.model, whole.optimizer)}
    assert {name.rpartition(".")[2] for name in names - {"blocks.0.mixer_norm.weight"}} == {
        "lora_A", "lora_B", "magnitude",
    }  # fmt: skip
    base = loading.load(tmp_path / "base").model.state_dict()
    state = whole.model.state_dict()
    assert {name for name, tensor in base.items() if not torch.equal(tensor, state[name])} == names & base.keys()
    first = start(tmp_path / "run", tuned, CPU, pretrained=open_pretrained(tmp_path / "base"))
    first_steps = steps(first, 8)
    second = resume(tmp_path / "run", CPU)
    assert [measured(step) for step in first_steps + steps(second)] == expected
    assert_equal_states(second, whole)

    lm, tokens = loading.load(tmp_path / "run"), torch.arange(40, 56)[None]
    assert {*lm.model.state_dict()} == {*base}
    with torch.inference_mode():
        apart = read_run_model(Run(tmp_path / "run"), merged=False)(tokens).logits
        assert torch.allclose(lm.model(tokens).logits, apart, atol=1e-5)
    beside = replace(lm, model=read_run_model(Run(tmp_path / "run"), merged=False))
    assert lm.generate("the model", max_new_tokens=5) == beside.generate("the model", max_new_tokens=5)
    export_verb(str(tmp_path / "run"), tmp_path / "adapter", adapter_only=True, family="llama")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["use_dora"]) == (str(tmp_path / "base"), True)
    assert config["modules_to_save"] == ["model.layers.0.input_layernorm"]
    again = loading.load(tmp_path / "adapter")
    with torch.inference_mode():
        assert torch.allclose(again.model(tokens).logits, apart, atol=1e-5)


def test_an_adapter_needs_a_trained_model(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(SpecError, match="adapter: needs a pretrained model; pass one with"):
        start(tmp_path / "run", recipe.replace(adapter=DoRA()), CPU)
