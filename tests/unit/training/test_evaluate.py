"""Held-out loss."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from archetype.training.evaluate import evaluate
from archetype.training.loop import take_step
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from archetype.training.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture
def state(tmp_path: Path, recipe: Recipe) -> TrainState:
    return start(tmp_path / "run", recipe.replace(batch_size=8, optimizer=AdamW(learning_rate=1e-2)), CPU)


@torch.no_grad()
def test_is_the_mean_over_every_window_and_counts_bytes(state: TrainState) -> None:
    with torch.enable_grad():
        for _ in range(10):  # until something is right
            take_step(state)
    evaluation = evaluate(state.model, state.objective, "float32")
    assert isinstance(state.objective, NextTokenObjective)
    tokens = torch.from_numpy(state.objective.corpus.validation).long()
    state.model.eval()
    losses, right = [], 0
    for i in range((len(tokens) - 1) // 16):
        row = tokens[i * 16 : i * 16 + 17]
        logits = state.model(row[None, :-1]).logits[0]
        losses.append(cross_entropy(logits, row[1:]).item())
        right += int((logits.argmax(-1) == row[1:]).sum())
    assert evaluation is not None
    assert evaluation.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert evaluation.count == 16 * len(losses)
    assert len(losses) % 8, "the last batch is smaller, and counts for less"
    assert evaluation.accuracy == right / evaluation.count > 0
    assert evaluation.bits_per_byte == pytest.approx(evaluation.loss / math.log(2))  # tokens are bytes


def test_leaves_the_model_training_and_draws_no_dropout(state: TrainState) -> None:
    first, second = (evaluate(state.model, state.objective, "float32") for _ in range(2))
    assert first == second
    assert state.model.training


def test_some_batches_are_spread_over_all(state: TrainState, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, total = state.objective, state.objective.num_validation_batches
    assert total > 6
    batches = [objective.validation_batch(index) for index in (0, total // 3, 2 * total // 3)]
    some = evaluate(state.model, objective, "float32", num_batches=3)
    monkeypatch.setattr(objective, "validation_batch", batches.__getitem__)
    monkeypatch.setattr(objective, "num_validation_batches", 3)
    assert evaluate(state.model, objective, "float32") == some


def test_stops_when_interrupted(state: TrainState) -> None:
    assert evaluate(state.model, state.objective, "float32", stop=lambda: True) is None
    answers = iter((False, True))
    assert evaluate(state.model, state.objective, "float32", stop=lambda: next(answers)) is None
    assert next(answers, None) is None
    assert state.model.training
