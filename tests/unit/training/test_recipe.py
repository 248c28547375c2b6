"""Recipes as files, and what is wrong with them in words."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.errors import ArchetypeError
from archetype.machine.device import resolve_dtype
from archetype.spec import Adapter, to_yaml
from archetype.training.datasets import Data, TextData
from archetype.training.objectives import NextToken, ObjectiveConfig
from archetype.training.optimizers import AdamW, Optimizer
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.schedules import Cosine, Schedule
from archetype.training.setup import start
from archetype.training.trackers import Tracker

CPU = torch.device("cpu")


def test_a_file_and_back(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


def test_a_run_keeps_the_recipe_it_was_made_with(tmp_path: Path, recipe: Recipe) -> None:
    start(tmp_path / "run", recipe, CPU)
    saved = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert saved == recipe.replace(dtype=resolve_dtype("auto", CPU), objective=NextToken(), sequence_length=16)
    assert saved.dtype in ("float32", "bfloat16")


def of_kind(kind: str, **fields: object) -> dict[str, object]:
    return {"kind": kind} | fields


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps: 0 is too small; use more than 0"),
    ({"stepz": 5}, "stepz: is not a known key; did you mean steps?"),
    ({"optimizer": of_kind("adamw", learning_rate=-1)}, "optimizer.learning_rate: -1 is too small; use more than 0.0"),
    ({"optimizer": of_kind("adamv")},
     "optimizer: 'adamv' is not a kind of optimizer (adamw, muon, adafactor, lion, sgd); did you mean adamw?"),
    ({"schedule": of_kind("cosin")},
     "schedule: 'cosin' is not a kind of schedule (cosine, linear, wsd, inverse_sqrt, constant, exponential_rise); "
     "did you mean cosine?"),
    ({"data": {"validation_fraction": 1.5}}, "data.validation_fraction: 1.5 is too large; use less than 0.9"),
    ({"data": of_kind("image")},
     f"data: 'image' is not a kind of data ({', '.join(Data.kinds)}); did you mean images?"),
    ({"data": "text.txt"}, f"data: 'text.txt' is not a kind of data; use one of {', '.join(Data.kinds)}"),
    ({"objective": of_kind("next_tokn")},
     f"objective: 'next_tokn' is not a kind of objective ({', '.join(ObjectiveConfig.kinds)}); "
     "did you mean next_token?"),
    ({"dtype": "bfloat61"}, "dtype: 'bfloat61' is not a choice; did you mean bfloat16?"),
]  # fmt: skip


def test_what_a_recipe_cannot_say_is_refused_with_place_cause_and_remedy() -> None:
    for data, message in REFUSALS:
        with pytest.raises(ArchetypeError) as caught:
            Recipe.parse(data)
        assert str(caught.value) == message


def test_where_there_was_one_kind_only_it_may_be_left_out() -> None:
    read = Recipe.parse({"optimizer": {"eps": 1e-6}, "schedule": {"warmup_steps": 5}, "data": {"text": ["a"]}})
    assert (read.optimizer, read.schedule) == (AdamW(eps=1e-6), Cosine(warmup_steps=5))
    assert read.data == TextData(text=("a",))


def test_the_schema_has_every_kind() -> None:
    kinds = set(re.findall(r'"kind": {"const": "(\w+)"', json.dumps(Recipe.model_json_schema())))
    assert kinds >= {
        kind for role in (Data, ObjectiveConfig, Optimizer, Schedule, Adapter, Tracker) for kind in role.kinds
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 99}, "sequence_length: 99 is more than the model's context of 16; use shorter sequences"),
        ({"spec": "llama-huge"}, "llama-huge: there is no preset, file or folder of this name"),
        (
            {"spec": {"vocab_size": 99}},
            "vocab_size: 99 is too small for the 256 tokens of the tokenizer and the objective",
        ),
        ({"data": {"text": ()}}, "data.text: no text was passed; name a file with --text"),
    ],
)
def test_a_recipe_that_cannot_run_leaves_nothing(
    tmp_path: Path, recipe: Recipe, fields: dict[str, object], message: str
) -> None:
    data = recipe.dump(full=True)
    for key, value in fields.items():
        data[key] = data[key] | value if isinstance(value, dict) and isinstance(data[key], dict) else value
    with pytest.raises(ArchetypeError) as caught:
        start(tmp_path / "run", Recipe.parse(data), CPU)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
