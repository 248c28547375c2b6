"""The recipe for the characters of Shakespeare learns; the whole of it runs in `make soak`."""

from pathlib import Path

import pytest
import torch

from archetype.estimate.report import total_parameters
from archetype.training.loop import train
from archetype.training.metrics import Evaluated, Event
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import start
from archetype.training.stop_signal import StopSignal

RECIPES = Path(__file__).parent.parent.parent / "recipes"
RECIPE = RECIPES / "tinyshakespeare.yaml"


def events(recipe: Recipe, text: Path, folder: Path) -> list[Event]:
    state = start(folder, recipe.replace(data=recipe.data.replace(text=(str(text),))), torch.device("cpu"))
    assert total_parameters(state.model.spec) <= 1_500_000
    assert state.recipe.data.validation_fraction == 0.1
    return list(train(state, StopSignal()))


def held_out(events: list[Event]) -> list[float]:
    return [event.evaluation.loss for event in events if isinstance(event, Evaluated)]


def test_thirty_steps_learn_the_letters(shared: Path, tmp_path: Path) -> None:
    recipe = read_recipe(RECIPE)
    beginning = tmp_path / "text.txt"  # the whole held-out text would take longer than the training
    beginning.write_text((shared / "tinyshakespeare" / "input.txt").read_text()[:40_000])
    short = recipe.replace(
        steps=30, schedule=recipe.schedule.replace(warmup_steps=5), evaluate_every=1000, batch_size=4
    )
    (loss,) = held_out(events(short, beginning, tmp_path / "run"))
    assert loss < 2.75  # knowing only how often each letter occurs gives 3.3


def test_the_large_recipe_has_the_size_it_says(shared: Path, tmp_path: Path) -> None:
    recipe = read_recipe(RECIPES / "tinyshakespeare_large.yaml")
    text = recipe.data.replace(text=(str(shared / "tinyshakespeare" / "input.txt"),))
    state = start(tmp_path, recipe.replace(data=text), torch.device("cpu"))
    assert total_parameters(state.model.spec) == 10_671_744


@pytest.mark.slow
def test_the_whole_recipe_reaches_what_it_promises(shared: Path, tmp_path: Path) -> None:
    text = shared / "tinyshakespeare" / "input.txt"
    assert held_out(events(read_recipe(RECIPE), text, tmp_path / "run"))[-1] < 1.60
