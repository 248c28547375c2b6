"""Every kind of model and objective starts, learns, and goes on after an interruption as if there had been none."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from archetype.api import loading
from archetype.runs.directory import read_run_model
from archetype.training.evaluate import evaluate
from archetype.training.loop import run, train
from archetype.training.metrics import Evaluated, Event, Step
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal
from tests.helpers.examples import every
from tests.helpers.recipes import NAMES, recipes
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
SUITS = {
    "encoder": "masked_token", "spans": "span_corruption", "pairs": "sequence_to_sequence",
    "recurrent pairs": "sequence_to_sequence", "images": "image_class", "images, batch norm": "image_class",
}  # fmt: skip


class Whole(NamedTuple):
    """A run that nothing interrupted."""

    name: str
    recipe: Recipe
    state: TrainState
    events: list[Event]


@pytest.fixture(scope="module", params=every(3, NAMES))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    recipe = recipes(folder)[request.param]
    state, events = start(folder / "run", recipe, CPU), []
    buffers = dict(state.model.named_buffers())
    assert all((value == (0 if key.endswith("mean") else 1)).all() for key, value in buffers.items())
    assert run(state, events.append) is None
    return Whole(request.param, recipe, state, events)


def test_interrupted_and_resumed_equals_uninterrupted(whole: Whole, tmp_path: Path) -> None:
    expected = [measured(event) for event in whole.events if isinstance(event, Step)]
    assert len(expected) == 9 and len({loss for _, loss, _ in expected}) == 9
    first = steps(start(tmp_path / "parts", whole.recipe, CPU), 6)
    second = resume(tmp_path / "parts", CPU)
    assert [measured(step) for step in first + steps(second)] == expected
    assert_equal_states(second, whole.state)


def test_a_run_is_written_and_read_whole(whole: Whole) -> None:
    state, name = whole.state, whole.name
    recipe = read_recipe(state.run.recipe_file)
    assert recipe.objective is not None and recipe.objective.kind == SUITS.get(name, "next_token")
    lines = [json.loads(line) for line in state.run.metrics_file.read_text().splitlines()]
    held_out = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in held_out] == [5, 9]
    assert all(0 <= line["validation_accuracy"] <= 1 and line["validation_count"] > 0 for line in held_out)
    assert (held_out[-1]["validation_bits_per_byte"] is None) == (name in SUITS)
    read = read_run_model(state.run)
    assert read.state_dict().keys() == state.model.state_dict().keys()
    assert all(torch.equal(value, state.model.state_dict()[key]) for key, value in read.state_dict().items())
    evaluation = evaluate(read, state.objective, "float32")
    assert evaluation is not None
    assert evaluation.loss == held_out[-1]["validation_loss"]
    lm = loading.load(state.run.folder)
    assert lm.spec == state.model.spec and (lm.tokenizer is None) == name.startswith("images")
    assert ("batch norm" in name or name == "encoder") == bool(dict(read.named_buffers()))
    for key, value in read.named_buffers():  # running statistics are trained, kept and used
        assert (value != (0 if key.endswith("mean") else 1)).all()
        with torch.no_grad():
            read.state_dict()[key].copy_(value + 1.0)
        changed = evaluate(read, state.objective, "float32")
        assert changed is not None and changed.loss != evaluation.loss


def test_loss_falls(whole: Whole, tmp_path: Path) -> None:
    longer = whole.recipe.replace(steps=36, optimizer=AdamW(learning_rate=3e-2), evaluate_every=1000)
    events = list(train(start(tmp_path / "run", longer, CPU), StopSignal()))
    losses = [event.loss for event in events if isinstance(event, Step)]
    early, late = (sum(part) / len(part) for part in (losses[:3], losses[-6:]))
    assert late < early - 0.05, (early, late)
    assert any(isinstance(event, Evaluated) and math.isfinite(event.evaluation.loss) for event in events)
