"""How many files someone reads to follow one training step, from the verb to `backward`, beside the model's."""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import archetype
from archetype.apps.cli.train import train as command
from archetype.training import loop
from archetype.training.recipe import Recipe
from archetype.training.setup import start

PACKAGE = Path(archetype.__file__).parent


class Reached(Exception):
    """The step has come to `backward`."""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The package's files that are entered from `loop.train` on, and those on the stack, when `backward` is called."""
    path: dict[str, list[str]] = {"entered": [], "stack": []}
    train = loop.train

    def name(frame: FrameType) -> str | None:
        file = Path(frame.f_code.co_filename)
        return file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else None

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (file := name(frame)) and file not in path["entered"]:
            path["entered"].append(file)

    def backward(tensor: torch.Tensor) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if file := name(frame):
                path["stack"].insert(0, file)
            frame = frame.f_back
        raise Reached

    def traced(*arguments: Any) -> Any:
        sys.setprofile(profile)
        threading.setprofile(profile)  # of the thread that prepares batches
        return train(*arguments)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(loop, "train", traced)
    return path


def without_model(files: list[str]) -> set[str]:
    """All but the forward pass of the model."""
    return {file for file in files if not file.startswith(("models/", "parts/", "nn/", "weights/", "native/"))}


def test_a_step_goes_through_few_files(recipe: Recipe, tmp_path: Path, path: dict[str, list[str]]) -> None:
    state = start(tmp_path / "run", recipe, torch.device("cpu"))
    with pytest.raises(Reached):
        loop.run(state, lambda event: None)
    assert path["stack"] == ["training/loop.py"] * 3
    assert without_model(path["entered"]) == {
        "data/batches.py", "training/loop.py", "training/objectives/base.py", "training/objectives/next_token.py",
        "training/objectives/text.py", "training/processes.py", "training/schedules.py", "training/stop_signal.py",
    }  # fmt: skip


def test_from_the_verb_it_is_two_more(text_file: Path, tmp_path: Path, path: dict[str, list[str]]) -> None:
    with pytest.raises(Reached):
        command(
            spec="llama-tiny", text=[str(text_file)], tokenizer="bytes", to=tmp_path / "run", device="cpu", steps=1,
            batch_size=1,
        )  # fmt: skip
    assert without_model(path["entered"] + path["stack"]) - without_model(path["entered"]) <= {
        "apps/cli/train.py", "apps/cli/progress.py"
    }  # fmt: skip
    assert len(without_model(path["entered"] + path["stack"])) <= 10
