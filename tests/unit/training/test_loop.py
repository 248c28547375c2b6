"""What a step does, and what it must never do."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from archetype.errors import CheckpointError, DataError
from archetype.runs import checkpoints as checkpoints
from archetype.training.evaluate import evaluate
from archetype.training.loop import take_step, train
from archetype.training.metrics import Evaluated, Saved, Step
from archetype.training.objectives.base import Batch, Counts, LossOutput
from archetype.training.optimizers import AdamW, optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from archetype.training.state import TrainState
from archetype.training.stop_signal import StopSignal, stop_on_signal
from tests.helpers.recipes import recipes

CPU = torch.device("cpu")


def test_evaluates_and_saves_where_the_recipe_says_and_at_the_end(tmp_path: Path, recipe: Recipe) -> None:
    events = list(train(start(tmp_path / "run", recipe.replace(steps=10), CPU), StopSignal()))
    assert [e.step for e in events if isinstance(e, Step)] == list(range(1, 11))
    assert [e.step for e in events if isinstance(e, Evaluated)] == [6, 10]
    assert [e.step for e in events if isinstance(e, Saved)] == [4, 8, 10]


def test_loss_falls_and_the_rate_follows_its_schedule(tmp_path: Path, recipe: Recipe) -> None:
    faster = recipe.replace(steps=40, optimizer=AdamW(learning_rate=1e-2))
    taken = [e for e in train(start(tmp_path / "run", faster, CPU), StopSignal()) if isinstance(e, Step)]
    assert taken[-1].loss < taken[0].loss - 1
    assert [e.learning_rate for e in taken] == [faster.schedule.learning_rate(1e-2, step, 40) for step in range(40)]


def break_loss(state: TrainState, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """From now on the loss, or only its gradient, is no number."""
    real = state.objective.compute_loss

    def broken(model: torch.nn.Module, batch: Batch, counts: Counts) -> LossOutput:
        output = real(model, batch, counts)
        # sqrt at zero: the loss stays finite and its gradient is infinite
        return replace(
            output, loss=output.loss * torch.nan if where == "loss" else output.loss + (output.loss * 0).sqrt()
        )

    monkeypatch.setattr(state.objective, "compute_loss", broken)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_no_number_never_reaches_weights_or_moments(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    take_step(state)
    before = [p.detach().clone() for p in state.model.parameters()]
    moments = {name: value.clone() for name, value in optimizer_tensors(state.model, state.optimizer).items()}
    break_loss(state, monkeypatch, where)
    assert take_step(state).skipped
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    after = optimizer_tensors(state.model, state.optimizer)
    assert all(torch.equal(moments[name], after[name]) for name in moments)
    with pytest.raises(DataError, match="was not finite in 5 steps in a row; lower the learning rate"):
        list(train(state, StopSignal()))


def test_a_skipped_step_leaves_running_statistics_as_they_were(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = json.loads(json.dumps(recipe.spec).replace("rms", "batch"))
    state = start(tmp_path / "run", recipe.replace(spec=spec), CPU)
    take_step(state)
    before = {name: buffer.clone() for name, buffer in state.model.named_buffers()}
    assert before and all((value != start).any() for value, start in zip(before.values(), (0, 1) * 4, strict=False))
    break_loss(state, monkeypatch, "loss")
    assert take_step(state).skipped
    assert all(torch.equal(buffer, before[name]) for name, buffer in state.model.named_buffers())
    monkeypatch.undo()
    assert not take_step(state).skipped
    assert not any(torch.equal(buffer, before[name]) for name, buffer in state.model.named_buffers())


def test_what_parts_add_is_trained_on(tmp_path: Path, recipe: Recipe) -> None:
    """A balance of experts is in the loss of a step, and not in what is held out."""

    def first(name: str, coefficient: float) -> tuple[float, float]:
        expert = {"kind": "gated", "d_ff": 8, "activation": "silu"}
        experts = {"kind": "experts", "experts_per_token": 2, "num_experts": 4, "expert": expert,
                   "balance_loss": coefficient}  # fmt: skip
        block = recipe.spec["layers"][0]["block"] | {"feedforward": experts}  # type: ignore[index]
        spec = recipe.spec | {"layers": [block]}  # type: ignore[operator]
        state = start(tmp_path / name, recipe.replace(spec=spec), CPU)
        held_out = evaluate(state.model, state.objective, "float32", 1)
        assert held_out is not None
        return take_step(state).loss, held_out.loss

    (plain, measured), (balanced, measured_too) = first("plain", 0.0), first("balanced", 0.5)
    assert balanced > plain + 0.4  # experts that are chosen alike add 0.5
    assert measured == measured_too


def test_gradients_are_clipped_at_the_norm_of_the_recipe(tmp_path: Path, recipe: Recipe) -> None:
    for limit in (0.005, 1e6):
        state = start(tmp_path / f"{limit}", recipe.replace(max_grad_norm=limit), CPU)
        norms: list[float] = []

        def note(*arguments: object, state: TrainState = state, norms: list[float] = norms) -> None:
            gradients = [p.grad.norm() for p in state.model.parameters() if p.grad is not None]
            norms.append(float(torch.stack(gradients).norm()))

        state.optimizer.register_step_pre_hook(note)
        unclipped = take_step(state).gradient_norm
        assert unclipped > 0.015
        assert norms == [pytest.approx(min(unclipped, limit), rel=1e-3)]


def test_dropout_is_drawn_by_the_recipes_seed(tmp_path: Path, recipe: Recipe) -> None:
    """With the same weights and the same batch."""

    def loss(seed: int) -> float:
        state = start(tmp_path / "run", recipe, CPU)
        shutil.rmtree(tmp_path / "run")
        state.recipe = recipe.replace(seed=seed)
        return take_step(state).loss

    assert loss(5) == loss(5) != loss(6)


def test_a_batch_in_parts_has_the_gradients_of_the_whole(tmp_path: Path) -> None:
    """The parts of pairs and of masked texts have different numbers of targets."""
    (tmp_path / "data").mkdir()
    for name, recipe in recipes(tmp_path / "data").items():
        if name in ("pairs", "encoder", "images"):
            spec = json.loads(json.dumps(recipe.spec).replace("0.1", "0.0").replace("batch", "layer"))
            recipe = recipe.replace(spec=spec)
            whole, parts = (
                take_step(start(tmp_path / f"{name} {rows}", recipe.replace(micro_batch_size=rows), CPU))
                for rows in (None, 5)
            )
            assert parts.num_targets == whole.num_targets
            assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
            assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)


def test_only_the_keyboards_second_signal_stops_at_once() -> None:
    with stop_on_signal() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_weight_decay_falls_on_matrices_only_and_betas_are_the_recipes(tmp_path: Path, recipe: Recipe) -> None:
    model = start(tmp_path / "run", recipe, CPU).model
    groups = AdamW(weight_decay=0.3, betas=(0.8, 0.97), eps=1e-7).build(model).param_groups
    assert all(group["betas"] == (0.8, 0.97) and group["eps"] == 1e-7 for group in groups)
    decays = {group["weight_decay"]: {p.dim() for p in group["params"]} for group in groups}
    assert decays == {0.3: {2}, 0.0: {1}}


def test_a_full_disk_is_one_line_and_the_old_checkpoint_stays(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = start(tmp_path / "run", recipe, CPU)
    events = train(state, StopSignal())
    while not isinstance(next(events), Saved):
        pass

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("archetype.io.atomic._sync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*; free some space or choose another folder"):
        list(events)
    monkeypatch.undo()
    assert resume(tmp_path / "run", CPU).step == 4
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_same_seed_same_run_and_another_seed_another(tmp_path: Path, recipe: Recipe) -> None:
    def losses(name: str, seed: int) -> list[float]:
        state = start(tmp_path / name, recipe.replace(seed=seed, steps=3), CPU)
        return [e.loss for e in train(state, StopSignal()) if isinstance(e, Step)]

    assert losses("a", 1) == losses("b", 1) != losses("c", 2)


def test_checkpoints_are_no_pickles(tmp_path: Path, recipe: Recipe) -> None:
    list(train(start(tmp_path / "run", recipe.replace(steps=4), CPU), StopSignal()))
    files = {file.name for file in (tmp_path / "run" / "checkpoints").rglob("*") if file.is_file()}
    assert files == {"model.safetensors", "optimizer.safetensors", "manifest.json"}
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") is not None
