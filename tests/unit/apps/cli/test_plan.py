"""`train --plan NxM` prints the layout that it chose and why; its options make the recipe that was planned."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.convert.source import open_spec
from archetype.errors import SpecError
from archetype.spec.edit import put
from archetype.training.recipe import Recipe


def planned(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("arguments", [
    ("--spec", "llama-tiny", "--batch-size", "32", "--plan", "1x8"),
    ("--spec", "llama-3-8b", "--batch-size", "16", "--sequence-length", "8192", "--plan", "1x8"),
    ("--spec", "llama-tiny", "--batch-size", "32", "--plan", "1x8", "--set", "optimizer.kind=muon"),
])  # fmt: skip
def test_the_chosen_layout_is_trained_by_its_options(arguments: tuple[str, ...]) -> None:
    *_, chosen, options = planned(*arguments).splitlines()
    about = json.loads(planned(*arguments, "--json"))
    assert options == f"as options: {' '.join(f'--set {field}' for field in about['chosen'])}"
    assert re.fullmatch(rf"chosen: .*: {re.escape(about['why'])}; 1,000 steps take .*", chosen)
    data = about["recipe"]
    put(data, about["chosen"])
    recipe = Recipe.parse(data)
    recipe.parallel.check(open_spec(arguments[1]), recipe)
    layouts = [one for one in about["steps"] if all(getattr(recipe.parallel, name) in (size, None)
                                                    for name, size in one["layout"].items())]  # fmt: skip
    assert layouts[0]["recomputes"] == (recipe.recompute == "blocks") and layouts[0]["rows"] == recipe.micro_batch_size
    is_fastest = layouts[0] == about["steps"][0]
    assert is_fastest == ("is not supported" not in about["why"]) == ("muon" not in arguments[-1])


def test_what_a_recipe_says_of_the_layout_is_obeyed_or_refused() -> None:
    arguments = ("--spec", "llama-tiny", "--batch-size", "32", "--plan", "1x8")
    about = json.loads(planned(*arguments, "--set", "parallel.shard=4", "--json"))
    assert {step["layout"]["shard"] for step in about["steps"]} == {4}
    for options, message in [
        (("--set", "parallel.shard=3"), "parallel: no layout of 8 devices for this model and batch has shard 3"),
        (("--micro-batch-size", "2"), "micro_batch_size: is chosen by a plan for a cluster; remove it"),
        (("--set", "recompute=blocks"), "recompute: is chosen by a plan for a cluster; remove it"),
        (("--adapter", "lora"), "adapter: a plan for a cluster needs all parameters trained; remove it"),
        (("--train", "lm_head.*"), "trainable: a plan for a cluster needs all parameters trained; remove it"),
    ]:
        with pytest.raises(SpecError, match=f"^{message}"):
            planned(*arguments, *options)


def test_an_adapter_is_planned_without_the_weights_beside_it(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 50)
    arguments = (str(text), "--spec", "llama-3-8b", "--batch-size", "1", "--sequence-length", "64", "--plan", "--json")
    adapted, whole = json.loads(planned(*arguments, "--adapter", "lora")), json.loads(planned(*arguments))
    assert adapted["trained"] < whole["trained"] / 100 and adapted["memory"]["optimizer"] < 2**30
    assert 0.6 * whole["flops"] < adapted["flops"] < 0.75 * whole["flops"]  # without the gradients of weights
    with pytest.raises(SpecError, match="adapter: needs a pretrained model; pass one with --f"):
        planned(*arguments[:3], "--adapter", "lora", "--to", str(tmp_path / "run"))
