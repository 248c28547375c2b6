"""The learning-rate range test: which rates it tries, what it suggests, and that it writes nothing."""

from pathlib import Path

import pytest
import torch

from archetype.api.pretrained import open_pretrained
from archetype.training.loop import run, take_step
from archetype.training.rate_finder import find_rate, steepest
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_recipe
from archetype.training.setup import start


def test_the_rate_rises_by_equal_factors_until_the_loss_grows(tmp_path: Path, recipe: Recipe) -> None:
    device = torch.device("cpu")
    resolved = resolve_recipe(tmp_path / "run", recipe.replace(batch_size=8), device)
    sweep = find_rate(resolved, device, num_steps=60)
    assert not (tmp_path / "run").exists()
    factors = [later / rate for rate, later in zip(sweep.rates, sweep.rates[1:], strict=False)]
    assert sweep.rates[0] == 1e-6 and factors == pytest.approx([10 ** (6 / 59)] * len(factors))
    assert len(sweep.losses) == len(sweep.means) == len(sweep.rates)
    assert min(sweep.means) < sweep.means[0] - 0.3
    assert sweep.suggested in sweep.rates and 1e-4 < sweep.suggested < 0.5
    sweep.draw(tmp_path / "rates.png", "token")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_a_trained_model_is_where_the_range_test_of_its_run_begins(tmp_path: Path, recipe: Recipe) -> None:
    device = torch.device("cpu")
    longer = recipe.replace(steps=40, optimizer=recipe.optimizer.replace(learning_rate=0.03))
    run(start(tmp_path / "base", longer, device), lambda event: None)
    for adapter in (None, {"kind": "lora"}):
        pretrained = open_pretrained(tmp_path / "base")
        further = Recipe.parse(recipe.replace(adapter=None).dump() | ({"adapter": adapter} if adapter else {}))
        resolved = resolve_recipe(tmp_path / "run", further, device, pretrained=pretrained)
        first = take_step(start(tmp_path / f"run{adapter is None}", further, device, pretrained=pretrained))
        assert find_rate(resolved, device, num_steps=3).losses[0] == first.loss
        assert (
            first.loss
            < find_rate(resolve_recipe(tmp_path / "new", recipe, device), device, num_steps=3).losses[0] - 0.3
        )


def test_the_suggested_rate_is_where_the_loss_falls_fastest() -> None:
    rates = [10 ** (-6 + step / 10) for step in range(60)]
    means = [
        5.0 if step < 30 else 5.0 - 0.2 * (step - 30) if step < 40 else 3.0 + 0.3 * (step - 40) for step in range(60)
    ]
    assert steepest(rates, means) == rates[35]
    assert steepest(rates[:4], [3.0, 2.0, 1.0, 2.0]) == rates[1]
    assert steepest([], []) is None and steepest(rates, [3.0] + [4.0] * 59) is None
