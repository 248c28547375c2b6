"""The learning-rate range test: which rates it tries, what it suggests, and that it writes nothing."""

from pathlib import Path

import pytest
import torch

from archetype.training.rate_finder import find_rate, steepest
from archetype.training.recipe import Recipe
from archetype.training.setup import prepare


def test_the_rate_rises_by_equal_factors_until_the_loss_grows(tmp_path: Path, recipe: Recipe) -> None:
    device = torch.device("cpu")
    setup = prepare(tmp_path / "run", recipe.replace(batch_size=8), device)
    sweep = find_rate(setup, device, num_steps=60)
    assert not (tmp_path / "run").exists()
    factors = [later / rate for rate, later in zip(sweep.rates, sweep.rates[1:], strict=False)]
    assert sweep.rates[0] == 1e-6 and factors == pytest.approx([10 ** (6 / 59)] * len(factors))
    assert len(sweep.losses) == len(sweep.means) == len(sweep.rates)
    assert min(sweep.means) < sweep.means[0] - 0.3
    assert 1e-4 < sweep.suggested < 0.5 and sweep.suggested in sweep.rates
    sweep.draw(tmp_path / "rates.png", "token")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_the_suggested_rate_is_where_the_loss_falls_fastest() -> None:
    rates = [10 ** (-6 + step / 10) for step in range(60)]
    means = [
        5.0 if step < 30 else 5.0 - 0.2 * (step - 30) if step < 40 else 3.0 + 0.3 * (step - 40) for step in range(60)
    ]
    assert steepest(rates, means) == rates[35]
    assert steepest(rates[:4], [3.0, 2.0, 1.0, 2.0]) == rates[1]
    assert steepest([], []) == 1e-6
