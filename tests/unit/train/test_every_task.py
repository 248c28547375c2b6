"""Every kind of model and task starts, learns, and goes on after an interruption as if there had been none."""

import json
import math
from pathlib import Path

import pytest
import torch

from archetype import loading
from archetype.runs.directory import read_run_model
from archetype.train.evaluate import evaluate
from archetype.train.loop import Evaluated, Step, train
from archetype.train.optimizers import optimizer_tensors
from archetype.train.recipe import AdamW, Recipe, read_recipe
from archetype.train.run import run
from archetype.train.state import resume, start
from archetype.train.stop_signal import Interrupt
from tests.helpers.recipes import NAMES, recipes
from tests.unit.train.test_resume import steps

CPU = torch.device("cpu")
SUITS = {
    "encoder": "masked_token", "spans": "span_corruption", "pairs": "sequence_to_sequence",
    "recurrent pairs": "sequence_to_sequence", "images": "image_class", "images, batch norm": "image_class",
}  # fmt: skip


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def specimen(name: str, tmp_path: Path) -> Recipe:
    return recipes(tmp_path)[name]


def test_interrupted_and_resumed_equals_uninterrupted(specimen: Recipe, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", specimen, CPU)
    losses = [(s.step, s.loss, s.gradient_norm) for s in steps(whole)]
    assert len(losses) == 9 and len({loss for _, loss, _ in losses}) == 9
    first = steps(start(tmp_path / "parts", specimen, CPU), 6)
    second = resume(tmp_path / "parts", CPU)
    rest = steps(second)
    assert [(s.step, s.loss, s.gradient_norm) for s in first + rest] == losses
    ours, theirs = second.model.state_dict(), whole.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    mine, other = (optimizer_tensors(s.model, s.optimizer) for s in (second, whole))
    assert mine.keys() == other.keys() and mine
    assert all(torch.equal(mine[key], other[key]) for key in mine)


def test_a_run_is_written_and_read_whole(specimen: Recipe, name: str, tmp_path: Path) -> None:
    session = start(tmp_path / "run", specimen, CPU)
    assert run(session, lambda event: None) is None
    kept = read_recipe(session.run.recipe_file)
    assert kept.objective is not None and kept.objective.kind == SUITS.get(name, "next_token")
    lines = [json.loads(line) for line in session.run.metrics_file.read_text().splitlines()]
    held_out = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in held_out] == [5, 9]
    assert all(0 <= line["validation_accuracy"] <= 1 and line["validation_count"] > 0 for line in held_out)
    assert (held_out[-1]["validation_bits_per_byte"] is None) == (name in SUITS)
    read = read_run_model(session.run)
    assert read.state_dict().keys() == session.model.state_dict().keys()
    assert all(torch.equal(value, session.model.state_dict()[key]) for key, value in read.state_dict().items())
    measured = evaluate(read, session.task, "float32")
    assert measured is not None
    assert measured.loss == held_out[-1]["validation_loss"]
    lm = loading.load(tmp_path / "run")
    assert lm.spec == session.model.spec and (lm.tokenizer is None) == name.startswith("images")


def test_loss_falls(specimen: Recipe, tmp_path: Path) -> None:
    longer = specimen.replace(steps=60, optimizer=AdamW(learning_rate=1e-2), evaluate_every=1000)
    events = list(train(start(tmp_path / "run", longer, CPU), Interrupt()))
    losses = [event.loss for event in events if isinstance(event, Step)]
    early, late = (sum(part) / len(part) for part in (losses[:3], losses[-10:]))
    assert late < early - 0.05, (early, late)
    assert any(isinstance(event, Evaluated) and math.isfinite(event.evaluation.loss) for event in events)


@pytest.mark.parametrize("name", ["batch norm", "images, batch norm"])
def test_running_statistics_are_trained_kept_and_used(specimen: Recipe, tmp_path: Path) -> None:
    session = start(tmp_path / "run", specimen, CPU)
    buffers = dict(session.model.named_buffers())
    assert buffers
    assert all((value == (0 if key.endswith("mean") else 1)).all() for key, value in buffers.items())
    run(session, lambda event: None)
    assert all((value != (0 if key.endswith("mean") else 1)).all() for key, value in buffers.items())
    read = read_run_model(session.run)
    assert all(torch.equal(buffers[key], value) for key, value in read.named_buffers())
    as_kept = evaluate(read, session.task, "float32")
    key, value = next(iter(read.named_buffers()))
    with torch.no_grad():
        read.state_dict()[key].copy_(value + 1.0)
    changed = evaluate(read, session.task, "float32")
    assert as_kept is not None and changed is not None
    assert as_kept.loss != changed.loss
