"""Runs listed, compared and drawn over each other, from folders that are written here without training."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype import families, spec
from archetype.apps.cli.main import app
from archetype.apps.cli.runs import shortest_names
from archetype.errors import DataError, Notice, SpecError
from archetype.estimate.report import cost_report
from archetype.io.yaml import mapping_to_yaml
from archetype.runs.directory import Run, write_run_spec
from archetype.tokenizers import train_tokenizer
from archetype.training import metrics, plot
from archetype.training.evaluate import Evaluation
from archetype.training.metrics import Evaluated, Step
from archetype.training.optimizers import AdamW
from archetype.training.plot import Curve
from archetype.training.provenance import Provenance
from archetype.training.recipe import Recipe

TINY = families.preset("llama-tiny")
LENGTH, TARGETS, RATE = 32, 64, 128.0  # tokens of a row, and of a step; tokens a second
LOSSES = {"slow": [5.0, 4.5, 4.25], "fast": [5.0, 4.0, 3.5]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of three steps, an evaluation after each; they differ in their learning rate."""
    for name, losses in LOSSES.items():
        run = Run(tmp_path / name)
        run.folder.mkdir()
        write_run_spec(run, TINY)
        optimizer = AdamW(learning_rate=0.01 if name == "fast" else 0.001)
        recipe = Recipe(steps=9, sequence_length=LENGTH, batch_size=2, optimizer=optimizer)
        run.recipe_file.write_text(mapping_to_yaml(recipe.dump(full=True)))
        for step, loss in enumerate(losses, 1):
            metrics.append(run.metrics_file, Step(step, loss, 1e-3, 0.5, RATE, TARGETS))
            metrics.append(run.metrics_file, Evaluated(step, Evaluation(loss + 0.1, 0.25, 40)))
    return tmp_path


def printed(*arguments: Any) -> str:
    """Standard output of a command that succeeds."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_runs_are_listed_with_what_each_changes_and_its_best_loss(folder: Path) -> None:
    rows = json.loads(printed("runs", folder, "--json"))["runs"]
    assert [row["run"] for row in rows] == [str(folder / name) for name in ("fast", "slow")]
    assert [row["changes"] for row in rows] == [{"optimizer.learning_rate": rate} for rate in (0.01, 0.001)]
    assert [row["best_validation_loss"] for row in rows] == [3.6, 4.35]
    assert all((row["step"], row["steps"], row["parameters"]) == (3, 9, rows[0]["parameters"]) for row in rows)
    heading, fast, slow = printed("runs", folder).splitlines()
    assert heading.split() == ["run", "parameters", "steps", "best", "validation", "loss", "learning_rate"]
    assert fast.split()[1:] == [f"{rows[0]['parameters']:,}", "3/9", "3.6000", "0.01"]
    assert slow.split()[-2:] == ["4.3500", "0.001"]


def test_models_are_compared_by_path_whatever_they_are_called(folder: Path) -> None:
    for other in (TINY, TINY.replace(name="mine")):
        write_run_spec(Run(folder / "slow"), spec.assign(other, ["layers[*].mixer.num_kv_heads=1", "d_model=32"]))
        changes = {row["run"]: row["changes"] for row in json.loads(printed("runs", folder, "--json"))["runs"]}
        expected = {"spec.d_model": 32, "spec.layers[*].mixer.num_kv_heads": 1, "optimizer.learning_rate": 0.001}
        assert {path: value for path, value in changes[str(folder / "slow")].items() if path != "spec.name"} == expected
        assert ("spec.name" in changes[str(folder / "slow")]) == (other.name == "mine")
    write_run_spec(Run(folder / "slow"), families.preset("t5-tiny"))
    heading, fast, slow = printed("runs", folder).splitlines()
    assert "kind" in heading.split() and "decoder" in fast.split() and "encoder_decoder" in slow.split()
    assert max(map(len, heading.split("  "))) < 60


def test_columns_have_the_shortest_names_that_tell_them_apart() -> None:
    paths = ["optimizer.learning_rate", "spec.layers[*].mixer.num_heads", "spec.layers[0].mixer.num_heads", "kind",
             "optimizer.kind"]  # fmt: skip
    assert shortest_names(paths) == [
        "learning_rate", "layers[*].mixer.num_heads", "layers[0].mixer.num_heads", "kind", "optimizer.kind",
    ]  # fmt: skip


def test_what_cannot_be_read_is_left_out_with_one_line(folder: Path) -> None:
    for name in ("a-broken", "other"):
        (folder / name).mkdir()
        (folder / name / "recipe.yaml").write_text("steps: [")
        (folder / name / "spec.yaml").write_text("kind: unheard-of")
    with pytest.warns(Notice, match=rf"^skipped unreadable runs: {folder}/a-broken/recipe.yaml:.*, and 1 others$"):
        assert len(printed("runs", folder).splitlines()) == 3
    for name in LOSSES:
        (folder / name / "spec.yaml").unlink()
    with pytest.raises(DataError, match=r"contains no readable run: .*recipe.yaml.*, and \d others"):
        CliRunner().invoke(app, ["runs", str(folder)], catch_exceptions=False)


def test_losses_of_different_tokenizers_are_said_not_to_compare(folder: Path, tmp_path: Path) -> None:
    tokenizers = [train_tokenizer("bytes", "", None), train_tokenizer("byte_bpe", "the cat sat", 257)]
    for names, is_said in (((0, 0), False), ((0, 1), True)):
        for run, number in zip(LOSSES, names, strict=True):
            shutil.rmtree(folder / run / "tokenizer", ignore_errors=True)
            (folder / run / "tokenizer").mkdir()
            tokenizers[number].save(folder / run / "tokenizer")
        for arguments in (("runs", folder), ("plot", *(folder / run for run in LOSSES), "--to", tmp_path / "c.png")):
            with warnings.catch_warnings(record=True) as shown:
                warnings.simplefilter("always")
                printed(*arguments)
            assert any("use different tokenizers" in str(one.message) for one in shown) == is_said


def test_losses_of_different_validation_data_are_said_not_to_compare(folder: Path) -> None:
    for hashes, is_said in ((("a", "a"), False), (("a", "b"), True)):
        for run, data in zip(LOSSES, hashes, strict=True):
            provenance = Provenance(spec="", data=data, recipe=Recipe().dump(full=True))
            (folder / run / "provenance.json").write_text(provenance.model_dump_json())
        for arguments in (("runs", folder), ("plot", *(folder / run for run in LOSSES))):
            with warnings.catch_warnings(record=True) as shown:
                warnings.simplefilter("always")
                printed(*arguments)
            assert any("use different data or validation data" in str(one.message) for one in shown) == is_said


def test_the_best_loss_is_of_evaluations_on_the_same_examples(folder: Path) -> None:
    """The one on all of them at the end may be lower, of easier examples."""
    metrics.append(Run(folder / "fast").metrics_file, Evaluated(3, Evaluation(1.0, 0.25, 400), on_all=True))
    rows = json.loads(printed("runs", folder, "--json"))["runs"]
    assert [row["best_validation_loss"] for row in rows] == [3.6, 4.35]


def test_a_run_that_was_not_evaluated_yet_offers_its_training_loss(folder: Path) -> None:
    file = Run(folder / "fast").metrics_file
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "validation" not in line) + "\n")
    with pytest.raises(SpecError, match="no validation loss has been recorded yet; train longer, or plot --loss tr"):
        CliRunner().invoke(app, ["plot", str(folder / "fast")], catch_exceptions=False)
    assert "training loss" in printed("plot", folder / "fast", "--loss", "training")


def test_a_difference_of_runs_is_that_of_models_and_recipes(folder: Path) -> None:
    fast, slow = folder / "fast", folder / "slow"
    assert printed("diff", fast, slow) == "recipe.optimizer.learning_rate: 0.01 -> 0.001\n"
    write_run_spec(Run(slow), TINY.replace(context_length=64))
    assert printed("diff", fast, slow).splitlines()[0] == "context_length: 128 -> 64"
    assert printed("diff", fast, fast) == "no difference\n"


@pytest.mark.parametrize("held_out", [False, True])
def test_curves_lie_over_steps_tokens_flops_or_seconds(
    folder: Path, held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[dict[str, Curve]] = []
    monkeypatch.setattr(plot, "draw_curves", lambda curves, *_: drawn.append(curves))
    flops = cost_report(TINY, 1, LENGTH).flops["train"] / LENGTH
    for axis, unit in {"steps": 1, "tokens": TARGETS, "flops": TARGETS * flops, "seconds": TARGETS / RATE}.items():
        flags = [] if held_out else ["--loss", "training"]
        printed("plot", folder / "slow", folder / "fast", "--x", axis, *flags, "--to", folder / "loss.png")
        for name, losses in LOSSES.items():
            xs, ys = drawn[-1][str(folder / name)]
            assert xs == pytest.approx([unit, 2 * unit, 3 * unit])
            assert ys == pytest.approx([loss + 0.1 for loss in losses] if held_out else losses)


def test_curves_are_drawn_as_a_picture_or_in_the_terminal(folder: Path) -> None:
    runs = folder / "slow", folder / "fast"
    assert printed("plot", *runs, "--x", "tokens", "--to", folder / "loss.png") == f"{folder / 'loss.png'}\n"
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    for ending, start in {"pdf": b"%PDF-", "svg": b"<?xml"}.items():
        printed("plot", *runs, "--to", folder / f"loss.{ending}")
        assert (folder / f"loss.{ending}").read_bytes().startswith(start)
    assert b"/Type3" not in (folder / "loss.pdf").read_bytes()  # text can be selected
    with pytest.raises(SpecError, match=r"unknown suffix '\.jpg'; use \.png, \.pdf, \.svg"):
        CliRunner().invoke(app, ["plot", *map(str, runs), "--to", str(folder / "loss.jpg")], catch_exceptions=False)
    assert not (folder / "loss.jpg").exists()
    text = printed("plot", *runs, "--x", "flops")
    assert "validation loss (nats) by FLOPs" in text and all(str(run) in text for run in runs)
