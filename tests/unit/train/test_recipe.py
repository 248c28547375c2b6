"""Recipes as files, and what is wrong with them in words."""

from pathlib import Path

import pytest
import torch

from archetype.errors import ArchetypeError
from archetype.train.precision import resolved
from archetype.train.recipe import NextToken, Recipe, read_recipe, recipe_yaml
from archetype.train.state import start

CPU = torch.device("cpu")


def test_a_file_and_back(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


def test_a_run_keeps_the_recipe_it_was_made_with(tmp_path: Path, recipe: Recipe) -> None:
    start(tmp_path / "run", recipe, CPU)
    kept = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert kept == recipe.replace(dtype=resolved("auto", CPU), objective=NextToken())
    assert kept.dtype in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: 0 is too small; use more than 0"),
        ({"stepz": 5}, "stepz: is not a known key; did you mean steps?"),
        ({"optimizer": {"kind": "adamw", "learning_rate": -1}}, "optimizer.learning_rate: -1 is too small; use more"),
        ({"data": {"validation": 1.5}}, "data.validation: 1.5 is too large; use less than 0.9"),
        ({"objective": {"kind": "next_tokn"}}, "objective: there is no kind 'next_tokn'; did you mean next_token?"),
        ({"dtype": "bfloat61"}, "dtype: 'bfloat61' is not a choice; did you mean bfloat16?"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ArchetypeError) as caught:
        Recipe.parse(changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 99}, "length: 99 is more than the model's context of 16; use a shorter length"),
        ({"spec": "llama-huge"}, "llama-huge: there is no preset, file or folder of this name"),
        (
            {"spec": {"vocab_size": 99}},
            "vocab_size: 99 is too small for the 256 tokens of the tokenizer and the objective",
        ),
        ({"data": {"text": ()}}, "data.text: no text is given; name a file with --text"),
    ],
)
def test_a_recipe_that_cannot_run_leaves_nothing(
    tmp_path: Path, recipe: Recipe, changes: dict[str, object], message: str
) -> None:
    data = recipe.dump(full=True)
    for key, value in changes.items():
        data[key] = data[key] | value if isinstance(value, dict) and isinstance(data[key], dict) else value
    with pytest.raises(ArchetypeError) as caught:
        start(tmp_path / "run", Recipe.parse(data), CPU)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
