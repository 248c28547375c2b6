"""How far it is from the command line to the line of mathematics: frames on the stack, and files to read."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import main
from archetype.models.build import build
from archetype.parts.attention import pairs
from archetype.tokenizers import train_tokenizer
from tests.helpers.specs import block, decoder

PACKAGE = Path(archetype.__file__).parent
ATTEND = pairs.attend


class Reached(BaseException):
    """Everything up to here is what was to be counted."""


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """file:function of the package's frames, outermost first, at the first call of `attend` or `backward`."""
    frames: list[str] = []

    def reached(*arguments: Any, **options: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                frames.insert(0, f"{file.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_name}")
            frame = frame.f_back
        raise Reached

    monkeypatch.setattr(pairs, "attend", reached)
    monkeypatch.setattr(torch.Tensor, "backward", reached)
    return frames


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a small decoder and a tokenizer of bytes."""
    spec = decoder(block(), vocab_size=256)
    LanguageModel(spec, build(spec), train_tokenizer("bytes", [], None)).save(tmp_path / "run")
    return tmp_path / "run"


def files(frames: list[str]) -> set[str]:
    return {frame.partition(":")[0] for frame in frames}


def test_from_generate_to_the_softmax(run: Path, stack: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["archetype", "generate", str(run), "text"])
    with pytest.raises(Reached):
        main()
    frames = [*stack, "parts/attention/core.py:attend"]
    assert len(frames) == 15, "\n".join(frames)
    assert files(frames) == {
        "apps/cli/main.py", "apps/cli/fields.py", "apps/cli/generate.py", "generate/engine.py",
        "generate/scheduler.py", "generate/reader.py", "models/decoder/module.py", "models/stack/module.py",
        "models/block/module.py", "parts/attention/module.py", "parts/attention/pairs.py", "parts/attention/core.py",
    }  # fmt: skip


def test_from_train_to_backward(tmp_path: Path, stack: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step enters and leaves before `backward` is counted in tests/unit/training/test_path_of_a_step.py."""
    text = tmp_path / "text.txt"
    text.write_text("a text of some words that is long enough for a row\n" * 40)
    options = ["--tokenizer", "bytes", "--steps", "1", "--batch-size", "1", "--sequence-length", "8", "--device", "cpu"]
    monkeypatch.setattr(
        sys, "argv", ["archetype", "train", "--text", str(text), "--to", str(tmp_path / "run"), *options]
    )
    monkeypatch.setattr(pairs, "attend", ATTEND)
    with pytest.raises(Reached):
        main()
    assert stack == [
        "apps/cli/main.py:main", "apps/cli/train.py:train", "apps/cli/progress.py:run_with_progress",
        "training/loop.py:run", "training/loop.py:train", "training/loop.py:take_step",
    ]  # fmt: skip
