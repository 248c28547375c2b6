"""What a step does, and what it must never do."""

from pathlib import Path

import pytest
import torch

from archetype.checkpoint import training as checkpoints
from archetype.errors import CheckpointError, DataError
from archetype.train import loop
from archetype.train.interrupt import Interrupt
from archetype.train.loop import Evaluated, Saved, Step, take_step, train
from archetype.train.optimizer import build_optimizer, optimizer_tensors
from archetype.train.recipe import AdamW, Recipe
from archetype.train.session import resume, start

CPU = torch.device("cpu")


def test_evaluates_and_saves_where_the_recipe_says_and_at_the_end(tmp_path: Path, recipe: Recipe) -> None:
    events = list(train(start(tmp_path / "run", recipe.changed(steps=10), CPU), Interrupt()))
    assert [e.step for e in events if isinstance(e, Step)] == list(range(1, 11))
    assert [e.step for e in events if isinstance(e, Evaluated)] == [6, 10]
    assert [e.step for e in events if isinstance(e, Saved)] == [4, 8, 10]


def test_loss_falls(tmp_path: Path, recipe: Recipe) -> None:
    faster = recipe.changed(steps=40, optimizer=AdamW(learning_rate=1e-2))
    losses = [e.loss for e in train(start(tmp_path / "run", faster, CPU), Interrupt()) if isinstance(e, Step)]
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_no_number_never_reaches_weights_or_moments(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    session = start(tmp_path / "run", recipe, CPU)
    take_step(session)
    before = [p.detach().clone() for p in session.model.parameters()]
    moments = {name: value.clone() for name, value in optimizer_tensors(session.model, session.optimizer).items()}
    real = loop.next_token_loss

    def broken(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        loss = real(model, tokens)
        # sqrt at zero: the loss stays finite and its gradient is infinite
        return loss * torch.nan if where == "loss" else loss + (loss * 0).sqrt()

    monkeypatch.setattr(loop, "next_token_loss", broken)
    assert take_step(session).skipped
    assert all(torch.equal(a, b) for a, b in zip(before, session.model.parameters(), strict=True))
    after = optimizer_tensors(session.model, session.optimizer)
    assert all(torch.equal(moments[name], after[name]) for name in moments)
    with pytest.raises(DataError, match="was not finite in 5 steps in a row; lower the learning rate"):
        list(train(session, Interrupt()))


def test_weight_decay_falls_on_matrices_only(tmp_path: Path, recipe: Recipe) -> None:
    model = start(tmp_path / "run", recipe, CPU).model
    groups = build_optimizer(model, AdamW(weight_decay=0.3)).param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert all(p.dim() >= 2 for p in groups[0]["params"]) and all(p.dim() == 1 for p in groups[1]["params"])


def test_a_full_disk_is_one_line_and_the_old_checkpoint_stays(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(tmp_path / "run", recipe, CPU)
    events = train(session, Interrupt())
    while not isinstance(next(events), Saved):
        pass

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("archetype.checkpoint.durable._sync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*; free some space or choose another folder"):
        list(events)
    monkeypatch.undo()
    assert resume(tmp_path / "run", CPU).step == 4
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_same_seed_same_run_and_another_seed_another(tmp_path: Path, recipe: Recipe) -> None:
    def losses(name: str, seed: int) -> list[float]:
        session = start(tmp_path / name, recipe.changed(seed=seed, steps=3), CPU)
        return [e.loss for e in train(session, Interrupt()) if isinstance(e, Step)]

    assert losses("a", 1) == losses("b", 1) != losses("c", 2)


def test_checkpoints_are_no_pickles(tmp_path: Path, recipe: Recipe) -> None:
    list(train(start(tmp_path / "run", recipe.changed(steps=4), CPU), Interrupt()))
    files = {file.name for file in (tmp_path / "run" / "checkpoints").rglob("*") if file.is_file()}
    assert files == {"model.safetensors", "optimizer.safetensors", "manifest.json"}
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") is not None
