"""Options that set fields: what is read from the text of a class is what the class declares."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

from archetype.apps.cli import generate, main, train_options
from archetype.apps.cli.fields import Field, _declared, _type, values_of
from archetype.errors import SpecError
from archetype.spec.describe import field_descriptions

FIELDS = {**train_options.FIELDS, **train_options.BUDGET, **generate.SAMPLING, **generate.BEAM}


@pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
def test_the_text_of_a_class_says_what_the_class_does(field: Field) -> None:
    file, name = field.place.split(":")
    cls = getattr(import_module(f"archetype.{file.removesuffix('.py').replace('/', '.')}"), name)
    declared, texts = _declared(file, name)
    key = next(key for key in field.path.split(".") if key in declared)
    assert texts[key] == field_descriptions(cls)[key]
    default = cls.model_fields[key].default
    assert declared[key][1].strip('"') == str(default) or float(declared[key][1]) == default


def test_the_type_of_an_option_is_that_of_its_field() -> None:
    assert _type("Annotated[int, Field(strict=True, ge=0)] | None") is int
    assert (_type("Positive"), _type("Flag"), _type("str | dict[str, Any]")) == (float, bool, str)
    assert _type("tuple[Annotated[Tracker, ByKind(Tracker)], ...]") == list[str]


def test_the_help_has_choices_and_defaults_of_the_class() -> None:
    text = " ".join(CliRunner().invoke(main.app, ["train", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "--dtype <auto|float32|bfloat16> Type that products are computed in. [default: auto]" in text
    assert "--batch-size <int> Rows of a step. [default: 16]" in text
    assert "--patience <int> Evaluations without a lower held-out (validation) loss" in text
    assert "after which training ends. [default: never]" in text


def test_what_is_not_given_is_left_to_a_file() -> None:
    fields = {"steps": Field("steps", ""), "track": Field("trackers", ""), "seed": Field("seed", "")}
    assert values_of(fields, {"steps": None, "track": ["wandb"], "seed": 0}) == {"trackers": ("wandb",), "seed": 0}


def test_data_of_two_kinds_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^--chat: cannot be combined with data of kind pairs; give data of one kind$"):
        train_options.recipe_fields({"source": ["a"], "target": ["b"], "chat": ["c"]}, None, None)
