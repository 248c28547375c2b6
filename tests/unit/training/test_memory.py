"""A step that does not fit is refused before it is taken, and what fits is said."""

import re
from pathlib import Path

import pytest
import torch

from archetype.errors import SpecError
from archetype.estimate.report import cost_report
from archetype.training import memory
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.helpers.recipes import recipes

CPU = torch.device("cpu")


def refusal(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(SpecError) as caught:
        start(folder, recipe, CPU)
    assert not folder.exists()
    return str(caught.value)


def test_too_many_rows_are_refused_with_the_most_that_fit(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**23)
    message = refusal(recipe.replace(batch_size=100_000, dtype="float32"), tmp_path / "run")
    match = re.fullmatch(
        r"batch_size: a step with 100,000 sequences of 16 tokens needs [\d.]+ GiB, but only 8.00 MiB is free; "
        r"use at most (\d+), or --micro-batch-size (\d+), which accumulates gradients over the batch, or --force",
        message,
    )
    assert match
    most, at_once = int(match[1]), int(match[2])
    memory_cost = cost_report(start(tmp_path / "small", recipe, CPU).model.spec, 1, 16, "float32").memory_cost
    # the gradients of the rows before are held beside the next rows' activations
    held = [memory_cost.memory(rows, 16) for rows in (at_once, at_once + 1)]
    assert (
        held[0]["training_state"] + held[0]["activations"] <= 2**23 < held[1]["training_state"] + held[1]["activations"]
    )
    assert memory_cost.memory(most, 16)["training_peak"] <= 2**23 < memory_cost.memory(most + 1, 16)["training_peak"]
    for fields in ({"batch_size": most}, {"batch_size": 10 * most, "micro_batch_size": at_once}):
        start(tmp_path / f"{fields}", recipe.replace(**fields, dtype="float32"), CPU)
    more = recipe.replace(batch_size=10 * most, micro_batch_size=at_once + 1, dtype="float32")
    cause = f"micro_batch_size: a step with {at_once + 1} sequences of 16 tokens"
    assert refusal(more, tmp_path / "run").startswith(cause)
    start(tmp_path / "forced", recipe, CPU, force=True)
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**10)
    assert "is free, too little for one sequence; use a smaller model" in refusal(recipe, tmp_path / "run")
    with pytest.raises(SpecError, match="too little for one sequence"):
        resume(tmp_path / "forced", CPU)
    assert resume(tmp_path / "forced", CPU, force=True).step == 0


def test_rows_and_tokens_are_those_of_the_data(tmp_path: Path) -> None:
    """A batch of pairs or images is no larger than all of them; a row of pairs no longer than the longest."""
    states = {name: start(tmp_path / name, recipe, CPU) for name, recipe in recipes(tmp_path).items()}
    for name in ("pairs", "images", "spans"):
        objective = states[name].objective
        assert objective.batch_shape is not None
        shapes = [objective.batch(step)[0].shape for step in range(4)]
        shapes += [objective.batch(step)[2].shape for step in range(4) if name == "pairs"]
        rows, tokens = objective.batch_shape
        assert {shape[0] for shape in shapes} == {rows}
        assert tokens is None if name == "images" else tokens is not None and max(s[1] for s in shapes) <= tokens <= 16
