"""A run whose recipe or data are no longer what it began with says which field it is, and goes on only when told to."""

import html
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.errors import ArchetypeError
from archetype.io.yaml import read_mapping
from archetype.training.loop import run
from archetype.training.metrics import Event, Notice, Step
from archetype.training.provenance import read_provenance
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.report_page import write_report
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from tests.unit.training.test_resume import steps

CPU = torch.device("cpu")


def edit(state: TrainState, old: str, new: str) -> None:
    text = state.run.recipe_file.read_text()
    assert text.count(old) == 1
    state.run.recipe_file.write_text(text.replace(old, new))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ArchetypeError) as caught:
        resume(folder, CPU, **options)
    return str(caught.value).replace(str(folder), "")


@pytest.mark.parametrize("taken", [0, 4])
def test_an_edited_recipe_is_named_by_its_field(tmp_path: Path, recipe: Recipe, taken: int) -> None:
    folder = tmp_path / "run"
    state = start(folder, recipe, CPU)
    if taken:
        steps(state, taken)
    unchanged = state.run.recipe_file.read_text()
    for old, new, message in (
        ("seed: 5", "seed: 6", "seed: was 5 when this run began and is 6 now"),
        ("\nbatch_size: 64", "\nbatch_size: 32", "batch_size: was 64 when this run began and is 32 now"),
        ("max_grad_norm: 1.0", "max_grad_norm: 2.0", "max_grad_norm: was 1.0 when this run began and is 2.0 now"),
        ("num_heads: 2", "num_heads: 4",
         "spec.layers[*].block.mixer.num_heads: was 2 when this run began and is 4 now"),
    ):  # fmt: skip
        edit(state, old, new)
        assert refusal(folder) == f"/recipe.yaml: {message}; restore it, or pass --allow-changes"
        state.run.recipe_file.write_text(unchanged)
    edit(state, "seed: 5", "seed: 6")
    edit(state, "max_grad_norm: 1.0", "max_grad_norm: 2.0")
    assert "max_grad_norm: was 1.0" in refusal(folder) and "is 2.0 now (and seed)" in refusal(folder)
    state = resume(folder, CPU, allow_changes=True)
    change = f"after step {taken}, {folder}/recipe.yaml: max_grad_norm: was 1.0 when this run began and is 2.0 now"
    assert state.recipe.seed == 6 and state.notes == (f"{change} (and seed)",)
    assert resume(folder, CPU).recipe.seed == 6  # said once
    edit(state, "seed: 6", "seed: 7")
    resume(folder, CPU, allow_changes=True)
    provenance = read_provenance(state.run)
    assert provenance is not None and len(provenance.changes) == 2 and provenance.changes[0] == state.notes[0]
    assert all(html.escape(change) in write_report(state.run).read_text() for change in provenance.changes)


def test_another_text_is_noticed_before_the_first_checkpoint(tmp_path: Path, recipe: Recipe, text_file: Path) -> None:
    copy, folder = tmp_path / "copy.txt", tmp_path / "run"
    copy.write_text(text_file.read_text())
    start(folder, recipe.replace(data=recipe.data.replace(text=(str(copy),))), CPU)
    copy.write_text(text_file.read_text().replace("token", "taken"))
    assert refusal(folder).endswith("copy.txt: the data have changed since this run began; restore them, or pass "
                                    "--allow-changes")  # fmt: skip
    assert resume(folder, CPU, allow_changes=True).step == 0
    assert resume(folder, CPU).step == 0
    moved = copy.rename(tmp_path / "moved.txt")
    file = folder / "recipe.yaml"
    file.write_text(file.read_text().replace(str(copy), str(moved)))
    assert resume(folder, CPU).step == 0  # the same text in another place


def test_another_architecture_is_noticed_before_the_first_checkpoint(tmp_path: Path, recipe: Recipe) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    state.run.spec_file.write_text(state.run.spec_file.read_text().replace("silu", "relu"))
    for options in ({}, {"allow_changes": True}):
        message = "/spec.yaml: the architecture has changed since this run began; restore it, or start a new run"
        assert refusal(tmp_path / "run", **options) == message


def test_a_damaged_provenance_is_named(tmp_path: Path, recipe: Recipe) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    recipe_damage = json.dumps({"spec": "a", "data": "b", "recipe": {"steps": "many", "seed": -1}})
    for text in ("", "[]", '{"spec": 1}', "\xff", recipe_damage):
        state.run.provenance_file.write_text(text)
        assert refusal(tmp_path / "run").startswith("/provenance.json: is damaged; restore it, or remove it")
    state.run.provenance_file.unlink()
    assert resume(tmp_path / "run", CPU).step == 0


def test_a_recipe_whose_layers_are_none_is_compared_all_the_same(tmp_path: Path, recipe: Recipe) -> None:
    file = start(tmp_path / "run", recipe, CPU).run.recipe_file
    values = read_mapping(file)
    for layers in ([], 1.5, None, {}):
        values["spec"]["layers"] = layers
        file.write_text(json.dumps(values))
        places = ("/recipe.yaml: spec.layers", "/recipe.yaml: spec.num_layers: was 1")
        assert refusal(tmp_path / "run").startswith(places)


def test_a_finished_run_goes_on_for_more_steps(tmp_path: Path, recipe: Recipe) -> None:
    folder, events = tmp_path / "run", list[Event]()
    assert run(start(folder, recipe, CPU), lambda event: None) is None
    assert refusal(folder, steps=12) == "steps: the run has taken 12 steps already; use a larger number of steps"
    state = resume(folder, CPU, steps=16)
    assert not state.run.weights_file.exists()  # the checkpoint has them, and they are no longer the last ones
    assert run(state, events.append) is None
    assert [event.step for event in events if isinstance(event, Step)] == [13, 14, 15, 16]
    (notice,) = (event for event in events if isinstance(event, Notice))
    assert notice.text == "the schedule now spans 16 steps: the learning rate continues at 0.00023 instead of 0.0001"
    assert read_recipe(folder / "recipe.yaml").steps == resume(folder, CPU).step == 16
    assert state.run.weights_file.exists()


def test_a_recipe_holds_every_value(tmp_path: Path, recipe: Recipe) -> None:
    text = start(tmp_path / "run", recipe, CPU).run.recipe_file.read_text()
    for field in (*Recipe.model_fields, "betas", "weight_decay", "warmup_steps", "min_lr_ratio", "validation_fraction"):
        assert f"{field}:" in text
    assert "sequence_length: 16" in text
