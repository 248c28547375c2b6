"""A resumed run is the run that was never interrupted, bit by bit."""

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.errors import CheckpointError
from archetype.runs import checkpoints as checkpoints
from archetype.runs.directory import read_run_model, weights_of
from archetype.training.evaluate import Evaluation, evaluate
from archetype.training.loop import run, train
from archetype.training.metrics import Evaluated, Event, Interrupted, Step
from archetype.training.optimizers import AdamW, optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal
from tests.helpers.recipes import recipes

CPU = torch.device("cpu")


def steps(state: TrainState, until: int | None = None) -> list[Step]:
    """The steps of a run, interrupted after `until`."""
    stop = StopSignal()
    taken: list[Step] = []
    for event in train(state, stop):
        if isinstance(event, Step):
            taken.append(event)
            if event.step == until:
                stop.receive(signal.SIGTERM, None)
    return taken


def measured(step: Step) -> tuple[int, float, float]:
    """What must be equal bit by bit."""
    return step.step, step.loss, step.gradient_norm


def assert_equal_states(a: TrainState, b: TrainState) -> None:
    """Weights, running statistics and the optimizer's moments are the same bits."""
    for ours, theirs in (
        (a.model.state_dict(), b.model.state_dict()),
        (optimizer_tensors(a.model, a.optimizer), optimizer_tensors(b.model, b.optimizer)),
    ):
        assert ours.keys() == theirs.keys() and ours
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, recipe: Recipe) -> None:
    whole = start(tmp_path / "whole", recipe, CPU)
    expected = [measured(step) for step in steps(whole)]
    for interrupted_at in (1, 4, 7, 11):
        folder = tmp_path / f"interrupted at {interrupted_at}"
        first = steps(start(folder, recipe, CPU), interrupted_at)
        second = resume(folder, CPU)
        assert second.step == interrupted_at
        assert [measured(step) for step in first + steps(second)] == expected
        assert_equal_states(second, whole)


def test_what_a_kill_has_left_is_gone_after_a_resume(tmp_path: Path, recipe: Recipe) -> None:
    """A file that was not finished, also beside the best weights, and a checkpoint that was to be removed."""
    folder = tmp_path / "run"
    steps(start(folder, recipe, CPU), 4)
    newest = max((folder / "checkpoints").iterdir())
    for step in (1, 2, 3):
        shutil.copytree(newest, folder / "checkpoints" / f"step-{step:08d}")
    (folder / "best").mkdir()
    for place in (folder, folder / "best", folder / "checkpoints"):
        (place / ".model.safetensors.1.partial").touch()
    run(resume(folder, CPU), lambda event: None)
    assert not list(folder.rglob("*.partial"))
    assert len(list((folder / "checkpoints").iterdir())) == recipe.keep_checkpoints


SHORT = {"batch_size": 8, "steps": 6, "evaluate_batches": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "muon, average, accumulation": {
        "optimizer": {"kind": "muon"}, "ema_decay": 0.9, "micro_batch_size": 3, "schedule": {"kind": "wsd"},
    },
    "adafactor, masters": {"optimizer": {"kind": "adafactor"}, "weights_dtype": "bfloat16", "dtype": "bfloat16"},
    "lion, masters, average": {"optimizer": {"kind": "lion"}, "weights_dtype": "bfloat16", "ema_decay": 0.5},
    "nesterov": {"optimizer": {"kind": "sgd", "nesterov": True}, "schedule": {"kind": "inverse_sqrt"}},
}  # fmt: skip


def test_every_optimizer_average_and_master_resumes_to_the_bit(tmp_path: Path, recipe: Recipe) -> None:
    for name, options in OPTIONS.items():
        changed = Recipe.parse(recipe.dump() | SHORT | options)
        whole = start(tmp_path / f"{name}, whole", changed, CPU)
        expected = [measured(step) for step in steps(whole)]
        first = steps(start(tmp_path / name, changed, CPU), 4)
        second = resume(tmp_path / name, CPU)
        assert [measured(step) for step in first + steps(second)] == expected, name
        assert_equal_states(second, whole)
        weights, other = second.final_weights(), whole.final_weights()
        assert all(torch.equal(weights[path], other[path]) and weights[path].dtype == torch.float32 for path in other)


@pytest.mark.slow
def test_every_model_and_objective_resumes_to_the_bit_with_every_option(tmp_path: Path) -> None:
    """Twelve architectures and five objectives, each interrupted twice, mid-epoch, with all that a checkpoint holds."""
    for name, recipe in recipes(tmp_path).items():
        for number, options in enumerate(OPTIONS.values()):
            changed = Recipe.parse(recipe.dump() | {"micro_batch_size": 5, "recompute": "blocks"} | options)
            whole, folder = start(tmp_path / f"{name} {number} whole", changed, CPU), tmp_path / f"{name} {number}"
            expected = [measured(step) for step in steps(whole)]
            taken = steps(start(folder, changed, CPU), 3) + steps(resume(folder, CPU), 7)
            resumed = resume(folder, CPU)
            assert [measured(step) for step in taken + steps(resumed)] == expected, (name, options)
            assert_equal_states(resumed, whole)


def test_the_average_is_what_is_evaluated_and_written(tmp_path: Path, recipe: Recipe) -> None:
    """Computed here from the weights after every step; a decay that grows from 2/11 to the recipe's."""
    state = start(tmp_path / "run", recipe.replace(ema_decay=0.3, checkpoint_every=100), CPU)
    average = {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}
    held_out: dict[int, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, Step):
            for name, parameter in state.model.named_parameters():
                decay = min(0.3, event.step / (9 + event.step))
                average[name] = decay * average[name] + (1 - decay) * parameter.detach()
        if isinstance(event, Evaluated) and not event.on_all:
            held_out[event.step] = event.evaluation.loss

    run(state, note)
    written = read_run_model(state.run)
    for name, parameter in written.named_parameters():
        torch.testing.assert_close(parameter, average[name])
        assert not torch.equal(parameter, state.model.get_parameter(name)) or "norm" in name
    evaluation = evaluate(written, state.objective, state.recipe.dtype, recipe.evaluate_batches)
    assert evaluation is not None and evaluation.loss == held_out[12]
    checkpoint = checkpoints.latest(state.run.checkpoints)
    assert checkpoint is not None and weights_of(state.run) == state.run.weights_file
    state.run.weights_file.unlink()
    assert weights_of(state.run) == checkpoint.average_file


def test_masters_are_float32_and_the_model_bfloat16(tmp_path: Path, recipe: Recipe) -> None:
    """Updates that bfloat16 would lose add up in the masters; gradients of micro-batches add up in float32."""
    sizes, optimizer = {"batch_size": 8, "micro_batch_size": 3}, AdamW(learning_rate=1e-6)
    changed = recipe.replace(weights_dtype="bfloat16", optimizer=optimizer, **sizes)
    state = start(tmp_path / "run", changed, CPU)
    before = state.final_weights()["lm_head.weight"].detach().clone()
    steps(state, 7)
    masters = state.final_weights()
    assert {parameter.dtype for parameter in state.model.parameters()} == {torch.bfloat16}
    for name, parameter in state.model.named_parameters():
        assert masters[name].dtype == torch.float32
        assert torch.equal(parameter, masters[name].bfloat16())
    moved = (masters["lm_head.weight"] - before).abs()
    assert (moved > 0).float().mean() > 0.9
    assert (masters["lm_head.weight"].bfloat16() == before.bfloat16()).float().mean() > 0.5


def test_the_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing waits for the sixth step; what is written is the fourth's nevertheless, and said once it is done."""
    whole = start(tmp_path / "whole", recipe, CPU)
    steps(whole, 4)
    sixth, write = threading.Event(), checkpoints.write

    def late(*arguments: Any, **options: Any) -> checkpoints.Checkpoint:
        assert sixth.wait(60)
        return write(*arguments, **options)

    monkeypatch.setattr(checkpoints, "write", late)
    state, order = start(tmp_path / "run", recipe.replace(steps=8), CPU), []
    for event in train(state, StopSignal()):
        order.append(f"{type(event).__name__} {event.step}")
        if isinstance(event, Step) and event.step == 6:
            sixth.set()
    assert order.index("Saved 4") > order.index("Step 6")
    expected = checkpoints.opened(whole.run.checkpoints / "step-00000004")
    assert checkpoints.opened(state.run.checkpoints / "step-00000004").manifest["files"] == expected.manifest["files"]


def test_a_damaged_newest_checkpoint_is_said_and_the_run_goes_on_from_the_one_before(
    tmp_path: Path, recipe: Recipe
) -> None:
    recipe = recipe.replace(batch_size=8)
    whole = start(tmp_path / "whole", recipe, CPU)
    steps(whole)
    steps(start(tmp_path / "run", recipe, CPU), 9)
    newest = tmp_path / "run" / "checkpoints" / "step-00000009" / "optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\0")
    state = resume(tmp_path / "run", CPU)
    assert state.step == 8
    cause = "is damaged: it differs from the manifest"
    assert state.notes == (f"{newest}: {cause}; resuming from the earlier step-00000008",)
    run(state, lambda event: None)
    assert_equal_states(state, whole)


def test_dropout_makes_the_steps_differ_from_one_without(tmp_path: Path, recipe: Recipe) -> None:
    """A control: were dropout not active above, its generator could not have been put to the test."""
    spec = json.loads(json.dumps(recipe.spec).replace("0.1", "0.0"))
    plain = steps(start(tmp_path / "plain", recipe.replace(spec=spec, steps=2), CPU))
    dropped = steps(start(tmp_path / "dropped", recipe.replace(steps=2), CPU))
    assert [s.loss for s in plain] != [s.loss for s in dropped]


def test_killed_before_any_checkpoint_starts_again(tmp_path: Path, recipe: Recipe) -> None:
    start(tmp_path / "run", recipe, CPU)
    assert resume(tmp_path / "run", CPU).step == 0


def test_resuming_does_not_write_into_the_checkpoint_it_reads(tmp_path: Path, recipe: Recipe) -> None:
    steps(start(tmp_path / "run", recipe, CPU), 4)
    steps(resume(tmp_path / "run", CPU), 5)
    for folder in sorted((tmp_path / "run" / "checkpoints").iterdir()):
        checkpoints.opened(folder)  # checks every hash


def test_another_text_is_refused(tmp_path: Path, recipe: Recipe, text_file: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_text(text_file.read_text())
    steps(start(tmp_path / "run", recipe.replace(data=recipe.data.replace(text=(str(copy),))), CPU), 4)
    copy.write_text(text_file.read_text().replace("token", "taken"))
    with pytest.raises(CheckpointError, match=r"copy.txt: the data have changed .*; restore them, or pass --allow"):
        resume(tmp_path / "run", CPU)


def test_another_architecture_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    steps(start(tmp_path / "run", recipe, CPU), 4)
    file = tmp_path / "run" / "spec.yaml"
    file.write_text(file.read_text().replace("silu", "relu"))  # every shape still fits
    with pytest.raises(CheckpointError, match=r"spec.yaml: the architecture has changed .*; restore it, or start"):
        resume(tmp_path / "run", CPU)


@pytest.mark.usefixtures("pictures")
def test_metrics_of_a_resumed_run_tell_each_step_once(tmp_path: Path, recipe: Recipe) -> None:
    state = start(tmp_path / "run", recipe, CPU)

    def stop_at_seven(event: Event) -> None:
        if isinstance(event, Step) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    assert run(state, stop_at_seven) == Interrupted(7, signal.SIGINT)
    assert run(resume(tmp_path / "run", CPU), lambda event: None) is None
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "validation_loss" in line] == [6, 12]
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_of_two_evaluations_at_a_step_the_first_is_compared(tmp_path: Path, recipe: Recipe) -> None:
    """The second is on all that is held out, at the end alone: not of the same examples as those before it."""
    state = start(tmp_path / "run", recipe.replace(evaluate_every=4), CPU)
    for step, losses, best, worse in ((4, (2.0, 1.0), 2.0, 0), (8, (2.5, 1.5), 2.0, 1), (12, (1.8, 9.0), 1.8, 0)):
        state.step, state.num_evaluated = step, 0
        for loss in losses:
            state.count(Evaluation(loss, None, 10))
        assert (state.best_loss, state.num_worse, state.num_evaluated) == (best, worse, 2)
    lines = [{"step": step, "validation_loss": loss} for step in (4, 12) for loss in (2.0 / step, 1.0 / step)]
    state.remember(lines)
    assert (state.best_loss, state.num_worse, state.num_evaluated) == (2.0 / 12, 0, 2)
    state.remember([{"step": step, "validation_loss": loss} for step, loss in ((4, 2.0), (4, 1.0), (8, 1.5))])
    assert (state.best_loss, state.num_worse, state.num_evaluated) == (1.5, 0, 0)


def test_the_hashes_by_which_a_run_is_known_stay(recipe: Recipe, tmp_path: Path) -> None:
    """Checkpoints of run directories hold these two hashes, of this recipe and this text."""
    recipe = recipe.replace(data=recipe.data.replace(split="end"))
    provenance = start(tmp_path / "run", recipe, CPU).provenance()
    assert provenance["spec"] == "edc7fe399f4dac33"
    assert provenance["data"] == "0d339f8587367a3f3e915c33989aeab437bc8cb17cc6b44d27d53cffaa110f29"


def test_a_checkpoint_without_a_hash_of_the_specification_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    checkpoints.write(state.run.checkpoints, 1, state.model.state_dict(), {}, {"versions": {}})
    with pytest.raises(CheckpointError, match="the architecture has changed since this run began"):
        resume(tmp_path / "run", CPU)
