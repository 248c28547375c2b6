"""Held-out loss."""

import math
from pathlib import Path

import pytest
import torch

from archetype.train.evaluate import evaluate
from archetype.train.recipe import Recipe
from archetype.train.session import start

CPU = torch.device("cpu")


def test_is_the_mean_over_every_window_and_counts_bytes(tmp_path: Path, recipe: Recipe) -> None:
    session = start(tmp_path / "run", recipe, CPU)
    found = evaluate(session.model, session.corpus, 8, 16, "float32")
    tokens = torch.from_numpy(session.corpus.validation).long()
    session.model.eval()
    losses = []
    with torch.no_grad():
        for i in range((len(tokens) - 1) // 16):
            row = tokens[i * 16 : i * 16 + 17]
            losses.append(torch.nn.functional.cross_entropy(session.model(row[None, :-1])[0], row[1:]).item())
    assert found is not None
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found.tokens == 16 * len(losses)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2))  # tokens are bytes


def test_leaves_the_model_training_and_draws_no_dropout(tmp_path: Path, recipe: Recipe) -> None:
    session = start(tmp_path / "run", recipe, CPU)
    first, second = (evaluate(session.model, session.corpus, 8, 16, "float32") for _ in range(2))
    assert first == second
    assert session.model.training


def test_stops_when_interrupted(tmp_path: Path, recipe: Recipe) -> None:
    session = start(tmp_path / "run", recipe, CPU)
    assert evaluate(session.model, session.corpus, 8, 16, "float32", interrupted=lambda: True) is None
