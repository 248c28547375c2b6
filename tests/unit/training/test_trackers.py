"""What a run measures reaches TensorBoard's own reader and the trackers that its recipe names."""

import json
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archetype.distribution import install_command
from archetype.errors import SpecError
from archetype.runs.directory import Run
from archetype.training import metrics
from archetype.training.loop import run
from archetype.training.metrics import Event, Notice, Step
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start

CPU = torch.device("cpu")
Logged = dict[str, list[tuple[int, Any]]]


def stop_after(step: int) -> Callable[[Event], None]:
    """Interrupt the run after a step."""
    return lambda event: signal.raise_signal(signal.SIGTERM) if isinstance(event, Step) and event.step == step else None


def from_tensorboard(folder: Path) -> Logged:
    """What TensorBoard itself shows of a folder: the steps and values of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    logged: Logged = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    for tag in events.Tags()["tensors"]:
        logged[tag.removesuffix("/text_summary")] = [
            (e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)
        ]
    return logged


def test_tensorboard_reads_what_was_measured_once_after_a_resume_too(tmp_path: Path, recipe: Recipe) -> None:
    folder = tmp_path / "run"
    state = start(folder, recipe.replace(steps=10, trackers=("tensorboard",)), CPU)
    run(state, stop_after(7))
    assert [file.stat().st_size > 0 for file in (folder / "tensorboard").iterdir()] == [True]
    checkpoint = folder / "checkpoints" / "step-00000007"
    for file in checkpoint.iterdir():
        file.unlink()
    checkpoint.rmdir()  # so that steps 5 to 7 are taken again
    run(resume(folder, CPU), lambda event: None, lambda state: f"wörds after {state.step}\n")
    lines, logged = metrics.read(Run(folder).metrics_file), from_tensorboard(folder / "tensorboard")
    for tag, field in (("training/loss", "loss"), ("validation/loss", "validation_loss")):
        measured = [(line["step"], pytest.approx(line[field])) for line in lines if field in line]
        assert len(measured) >= 2 and logged[tag] == measured, tag
    assert [step for step, _ in logged["training/gradient_norm"]] == list(range(1, 11))
    assert logged["sample"] == [(line["step"], line["sample"]) for line in lines if "sample" in line]
    assert logged["sample"][-1] == (10, "wörds after 10\n")


class Package:
    """The functions of wandb, trackio and mlflow that a run calls, each noting how."""

    def __init__(self, fails: bool = False) -> None:
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.fails, self.id = fails, "id-1"

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name].append((*arguments, options))
            if self.fails and name.startswith("log"):
                raise OSError("no network")
            return self if name == "init" else SimpleNamespace(info=SimpleNamespace(run_id="id-1"))

        return call


def test_a_run_needs_no_tensorboard_unless_its_recipe_names_it(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    folder = tmp_path / "run"
    with pytest.raises(SpecError) as refused:
        start(folder, recipe.replace(trackers=("tensorboard",)), CPU)
    remedy = f"{install_command('tensorboard')}, or remove it from the recipe's trackers"
    assert str(refused.value) == f"trackers: tensorboard is not installed; {remedy}"
    assert not folder.exists()
    run(start(folder, recipe.replace(steps=2), CPU), lambda event: None)
    assert not (folder / "tensorboard").exists()
    assert len([line for line in metrics.read(Run(folder).metrics_file) if "loss" in line]) == 2


def test_a_run_that_goes_on_without_its_tensorboard_is_refused_before_a_step(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(start(tmp_path / "run", recipe.replace(trackers=("tensorboard",)), CPU), stop_after(3))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    events: list[Event] = []
    with pytest.raises(SpecError, match="tensorboard is not installed"):
        run(resume(tmp_path / "run", CPU), events.append)
    assert events == []


@pytest.mark.parametrize("kind", ["wandb", "trackio", "mlflow"])
def test_a_tracker_gets_settings_measurements_samples_and_the_end(
    kind: str, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(SpecError, match=f"^trackers: {kind} is not installed; {re.escape(install_command(kind))}"):
        start(tmp_path / "run", recipe.replace(trackers=({"kind": kind},)), CPU)
    assert not (tmp_path / "run").exists()
    package = Package()
    monkeypatch.setitem(sys.modules, kind, package)
    state = start(tmp_path / "run", recipe.replace(trackers=({"kind": kind},)), CPU)
    run(state, stop_after(3))
    run(resume(tmp_path / "run", CPU), lambda event: None, lambda state: "a text")
    losses = [line["loss"] for line in metrics.read(state.run.metrics_file) if "loss" in line]
    calls = package.calls
    if kind == "mlflow":
        assert calls["start_run"] == [({"run_name": "run"},), ({"run_id": "id-1"},)]
        assert calls["log_params"][0][0]["spec.d_model"] == "16"
        assert [values["training/loss"] for values, _ in calls["log_metrics"] if "training/loss" in values] == losses
        assert ("a text", "sample/step-00000012.txt", {}) in calls["log_text"]
        assert calls["end_run"] == [("KILLED", {}), ("FINISHED", {})]
    else:
        first, second = (options for (options,) in calls["init"])
        assert first["config"]["spec.d_model"] == 16 and first["name"] == second["name"] == "run"
        assert (kind == "trackio") or ("id" not in first and second["id"] == "id-1")
        assert [values["training/loss"] for values, _ in calls["log"] if "training/loss" in values] == losses
        assert calls["log"][-1] == ({"step": 12, "sample": "a text"}, {})
        assert len(calls["finish"]) == 2


def test_a_tracker_that_fails_is_left_and_the_run_goes_on(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", Package(fails=True))
    events: list[Event] = []
    run(start(tmp_path / "run", recipe.replace(trackers=("trackio",)), CPU), events.append)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == ["trackio failed and gets no further metrics: no network"]
    recorded = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert recorded["recipe"]["trackers"] == [{"kind": "trackio", "project": "archetype"}]
    assert len([line for line in metrics.read(Run(tmp_path / "run").metrics_file) if "loss" in line]) == 12
