"""Options that set fields: types, choices, defaults and help are those of the classes of settings."""

import re
import subprocess
import sys
from importlib import import_module
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from typer.testing import CliRunner

from archetype.apps.cli import generate, main, train_options
from archetype.apps.cli.fields import SettingOption, option_type, setting, values_of
from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.describe import field_descriptions
from archetype.training.examples import RecordData
from archetype.training.optimizers import Optimizer
from archetype.training.recipe import Recipe
from archetype.training.schedules import WarmUp
from archetype.training.teacher.spec import Teacher

SETTINGS = {**train_options.FIELDS, **train_options.BUDGET, **generate.SAMPLING, **generate.BEAM}
ROLES: dict[str, type[Spec]] = {"optimizer": Optimizer, "schedule": WarmUp, "teacher": Teacher}


@pytest.mark.parametrize("option", train_options.FIELDS)
def test_the_help_of_an_option_is_that_of_the_field_in_the_recipe(option: str) -> None:
    path, _, about = train_options.FIELDS[option]
    above, _, name = path.rpartition(".")
    if above == "data":
        kinds = import_module("archetype.training.datasets").Data.kinds.values()
        owners = [cls for cls in kinds if name in cls.model_fields]
    else:
        owners = [ROLES.get(above, Recipe)]
    name = name if above in ("data", *ROLES) else path.partition(".")[0]
    assert about in [field_descriptions(cls)[name] for cls in owners]


def test_each_kind_of_records_describes_its_own() -> None:
    kinds = [cls for cls in RecordData.kinds.values() if issubclass(cls, RecordData)]
    assert len(kinds) == len({field_descriptions(cls)["examples"] for cls in kinds}) == 6


def test_every_setting_has_a_sentence_of_help() -> None:
    texts = [about for *_, about in SETTINGS.values()]
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


def test_the_type_of_an_option_is_that_of_its_field() -> None:
    assert option_type(Annotated[int, Field(strict=True, ge=0)] | None) is int
    assert (option_type(float), option_type(bool), option_type(str | dict[str, Any])) == (float, bool, str)
    assert option_type(tuple[Annotated[Optimizer, "metadata"], ...]) == list[str]
    assert option_type(Literal["a", "b"]) == Literal["a", "b"]


def test_the_help_has_choices_and_defaults_of_the_class() -> None:
    text = " ".join(CliRunner().invoke(main.app, ["train", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "--dtype auto|float32|bfloat16 Data type of matrix products" in text
    assert "--batch-size N Number of sequences per optimizer step. [default: 16]" in text
    assert "--seed N Seed of weights, data order and dropout. [default: 0]" in text
    assert "without a lower validation loss. [default: never]" in text


@pytest.mark.parametrize("verb", ["train", "generate", "evaluate", "cost", "serve", "tokenizer", "compare"])
def test_the_help_shows_no_python_types(verb: str) -> None:
    text = CliRunner().invoke(main.app, [verb, "--help"]).stdout
    assert "Usage:" in text
    assert not re.findall(r"<\w+(?:\[\w+\]| range)?>(?!-)", text)


def test_options_and_their_help_need_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\nfrom archetype.apps.cli import chat, evaluate, generate, train\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_option_that_is_not_given_leaves_its_field_to_the_recipe() -> None:
    settings: dict[str, SettingOption] = {
        "steps": setting("steps", int), "track": setting("trackers", tuple[str, ...]), "seed": setting("seed", int),
    }  # fmt: skip
    assert values_of(settings, {"steps": None, "track": ["wandb"], "seed": 0}) == {"trackers": ("wandb",), "seed": 0}


def test_data_of_two_kinds_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^--chat: cannot be combined with data of kind pairs; use data of one kind$"):
        train_options.recipe_fields({"source": ["a"], "target": ["b"], "chat": ["c"]}, None, None)
