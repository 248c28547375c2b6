"""Held-out loss."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from archetype.train.evaluate import evaluate
from archetype.train.loop import take_step
from archetype.train.objectives.text import NextTokenTask
from archetype.train.recipe import AdamW, Recipe
from archetype.train.state import Session, start

CPU = torch.device("cpu")


@pytest.fixture
def session(tmp_path: Path, recipe: Recipe) -> Session:
    return start(tmp_path / "run", recipe.replace(batch_size=8, optimizer=AdamW(learning_rate=1e-2)), CPU)


@torch.no_grad()
def test_is_the_mean_over_every_window_and_counts_bytes(session: Session) -> None:
    with torch.enable_grad():
        for _ in range(10):  # until something is right
            take_step(session)
    found = evaluate(session.model, session.task, "float32")
    assert isinstance(session.task, NextTokenTask)
    tokens = torch.from_numpy(session.task.corpus.validation).long()
    session.model.eval()
    losses, right = [], 0
    for i in range((len(tokens) - 1) // 16):
        row = tokens[i * 16 : i * 16 + 17]
        logits = session.model(row[None, :-1])[0]
        losses.append(cross_entropy(logits, row[1:]).item())
        right += int((logits.argmax(-1) == row[1:]).sum())
    assert found is not None
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found.count == 16 * len(losses)
    assert len(losses) % 8, "the last batch is smaller, and counts for less"
    assert found.accuracy == right / found.count > 0
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2))  # tokens are bytes


def test_leaves_the_model_training_and_draws_no_dropout(session: Session) -> None:
    first, second = (evaluate(session.model, session.task, "float32") for _ in range(2))
    assert first == second
    assert session.model.training


def test_some_batches_are_spread_over_all(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = list(session.task.held_out())
    assert len(batches) == session.task.held_out_batches() > 6

    def chosen() -> Iterator[tuple[torch.Tensor, ...]]:
        return (batches[i * len(batches) // 3] for i in range(3))

    some = evaluate(session.model, session.task, "float32", batches=3)
    monkeypatch.setattr(session.task, "held_out", chosen)
    monkeypatch.setattr(session.task, "held_out_batches", lambda: 3)
    assert evaluate(session.model, session.task, "float32") == some


def test_stops_when_interrupted(session: Session) -> None:
    assert evaluate(session.model, session.task, "float32", interrupted=lambda: True) is None
    answers = iter((False, True))
    assert evaluate(session.model, session.task, "float32", interrupted=lambda: next(answers)) is None
    assert next(answers, None) is None
    assert session.model.training
