"""A run that ends worse than guessing, or that diverges, says so: as it trains, at its end, and in its report."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import archetype
from archetype.apps.cli import main
from archetype.training.datasets import ImageData
from archetype.training.evaluate import evaluate
from archetype.training.examples import LabelledText, LabelledTokens, Preferences
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from archetype.training.state import TrainState
from archetype.training.verdict import verdict
from tests.helpers.recipes import recipes, vision

CPU = torch.device("cpu")
GUESS = 2.0


def measured(losses: list[float], held_out: float) -> list[dict[str, Any]]:
    """The metrics of a run with these losses."""
    lines = [{"step": number, "loss": loss, "skipped": False} for number, loss in enumerate(losses, 1)]
    return [*lines, {"step": len(losses), "sample": "a"}, {"step": len(losses), "validation_loss": held_out}]


@pytest.mark.parametrize(
    ("losses", "held_out", "text"),
    [
        ([2.1, 9.0, 30.0], 32.95, "validation loss of 32.95, worse than guessing (2.00): a learning rate of 10"),
        ([2.1], 9.0, "validation loss of 9.00, worse than guessing (2.00): a learning rate of 10 is too high"),
        ([1.9], math.nan, "validation loss of nan, worse than guessing (2.00): a learning rate of 10 is too high"),
        ([0.8, 1.2, 1.4, 1.4], 1.5, "validation loss of 1.50, and started at 0.80: a learning rate of 10 is"),
        ([2.1, 3.0, 4.0], 1.99, ""),  # it has recovered
        ([2.2, 2.1], 2.15, "validation loss of 2.15, worse than guessing (2): 2 steps at a learning rate of 10 are"),
        ([2.1, 0.1], 4.0, "validation loss of 4, worse than guessing (2): with a training loss of 0.1, the model has"),
        ([2.1, 1.5], 1.9, ""),
        ([0.8, 0.85, 0.9], 1.9, ""),
    ],
)  # fmt: skip
def test_an_end_is_judged_by_its_losses(losses: list[float], held_out: float, text: str) -> None:
    judged = verdict(measured(losses, held_out), GUESS, 10.0)
    assert bool(judged) == bool(text) and (judged is None or judged.text.startswith(f"ends at a {text}"))
    assert judged is None or judged.has_diverged == ("too high" in judged.text)
    alone = verdict(measured(losses, held_out), None, 10.0)  # nothing is known of guessing: a rise alone is judged
    assert (alone is not None) == (losses[-1] > 1.25 * losses[0] < held_out)


@pytest.mark.parametrize(("validation", "has_diverged"), [([1.6, 1.61], False), ([1.6, 2.4], True)])
def test_a_run_with_a_teacher_is_judged_by_its_validation(validation: list[float], has_diverged: bool) -> None:
    # the distance from a teacher that the model equals begins with 0, and rises
    lines = [{"step": number, "loss": loss, "skipped": False} for number, loss in enumerate([0.0, 0.02, 0.03], 1)]
    lines += [{"step": number, "validation_loss": loss} for number, loss in enumerate(validation, 2)]
    judged = verdict(lines, GUESS, 10.0, is_taught=True)
    assert bool(judged) == has_diverged == (judged is not None and judged.has_diverged)
    by_distance = verdict(lines, GUESS, 10.0)
    assert by_distance is not None and by_distance.has_diverged


def held_out_loss(state: TrainState) -> float:
    evaluation = evaluate(state.model, state.objective, "float32")
    assert evaluation is not None
    return evaluation.loss


@pytest.mark.parametrize("name", ["megabyte", "ngram", "encoder", "spans", "pairs", "recurrent pairs", "images"])
def test_guessing_is_what_a_model_without_a_preference_does(name: str, tmp_path: Path) -> None:
    state = start(tmp_path / "run", recipes(tmp_path)[name], CPU)
    for parameter in state.model.parameters():
        parameter.data.zero_()
    guess, blank = state.objective.guessing_loss(state.model.spec), held_out_loss(state)
    assert guess is not None
    assert guess == pytest.approx(blank, rel=1e-5) or (name == "images" and guess < blank + 0.1)


def test_guessing_knows_how_often_each_class_occurs(tmp_path: Path) -> None:
    labels = ["often", "often", "often", "rare"] * 100
    records: dict[str, list[dict[str, Any]]] = {
        "texts": [{"text": f"a b {number}", "label": label} for number, label in enumerate(labels)],
        "values": [{"text": f"a b {number}", "label": number % 7} for number in range(400)],
        "tokens": [{"tokens": ["a", str(number)], "labels": ["often", one]} for number, one in enumerate(labels)],
        "pairs": [{"prompt": "1+1=", "chosen": "2", "rejected": str(number + 3)} for number in range(20)],
    }
    for name, of_name in records.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, of_name)))
    images = {"images": np.zeros((400, 8, 8), "float32"), "labels": np.array([0, 0, 0, 1] * 100)}
    np.savez(tmp_path / "images.npz", **images)
    for data, spec, objective in (
        (LabelledText(examples=(str(tmp_path / "texts.jsonl"),), tokenizer="bytes"), "llama-tiny", None),
        (LabelledText(examples=(str(tmp_path / "values.jsonl"),), tokenizer="bytes"), "llama-tiny", "regression"),
        (LabelledTokens(examples=(str(tmp_path / "tokens.jsonl"),), tokenizer="words"), "llama-tiny", None),
        (Preferences(examples=(str(tmp_path / "pairs.jsonl"),), tokenizer="bytes"), "llama-tiny", None),
        (ImageData(file=str(tmp_path / "images.npz")), vision(), None),
    ):
        recipe = Recipe.parse({"spec": spec, "objective": objective}).replace(
            data=data.replace(validation_fraction=0.5), steps=1
        )
        state = start(tmp_path / f"{data.kind} {objective}", recipe, CPU)
        guess, batches = state.objective.guessing_loss(state.model.spec), range(state.objective.num_validation_batches)
        targets = [state.objective.inputs_and_targets(state.objective.validation_batch(n))[1] for n in batches]
        held_out = torch.cat([target.flatten() for target in targets])
        if data.kind == "preferences":
            assert guess == pytest.approx(held_out_loss(state), rel=1e-3) == math.log(2)  # of the reference itself
        elif objective:
            assert guess == pytest.approx(float(held_out.double().var(correction=0)), rel=0.1)
        else:
            counts = Counter(held_out[held_out >= 0].tolist())
            entropy = -sum(n * math.log(n / counts.total()) for n in counts.values()) / counts.total()
            assert guess == pytest.approx(entropy, rel=0.1) and guess < math.log(2)


def test_a_rate_of_10_is_one_line_a_status_and_a_sentence_of_the_report(tmp_path: Path, text_file: Path) -> None:
    rest = ["--batch-size", "4", "--sequence-length", "16", "--tokenizer", "bytes", "--warmup-steps", "1"]
    arguments = ["train", str(text_file), *rest, "--to", str(tmp_path / "run")]
    done = CliRunner().invoke(
        main.app, [*arguments, "--steps", "12", "--learning-rate", "10", "--set", "evaluate_every=4"]
    )
    assert done.exit_code == 1
    said = [line for line in done.stderr.splitlines() if "a learning rate of 10 is too high" in line]
    assert len(said) == 2 and "stop, and start again with a lower learning rate" in said[0]
    assert said[1].startswith("ends at a validation loss of ") and "worse than guessing (5.5" in said[1]
    assert done.stderr.index(said[0]) < done.stderr.index("step     8  validation")
    assert f"This run {said[1]}." in (tmp_path / "run" / "report.html").read_text()
    assert archetype.load(tmp_path / "run").generate("the", max_new_tokens=2) is not None  # it stays
    again = CliRunner().invoke(main.app, ["train", "--resume", str(tmp_path / "run")])  # which has nothing left to do
    assert again.exit_code == 1 and said[1] in again.stderr
    well = CliRunner().invoke(main.app, [*arguments[:-1], str(tmp_path / "well"), "--steps", "15"])
    assert well.exit_code == 0 and "worse than guessing" not in well.stderr
    assert "This run ends" not in (tmp_path / "well" / "report.html").read_text()
