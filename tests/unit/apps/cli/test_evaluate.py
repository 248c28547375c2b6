"""`archetype evaluate` says what it reads where that takes longer than a moment."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.data import preparation
from archetype.tokenizers import train_tokenizer


def test_a_long_evaluation_says_how_much_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = archetype.build("llama-tiny", seed=0), train_tokenizer("bytes", [], None)
    archetype.export(LanguageModel(archetype.load_spec("llama-tiny"), model, tokenizer), tmp_path / "model")
    (tmp_path / "text.txt").write_text("a text of some tokens " * 20)
    command = ["evaluate", str(tmp_path / "model"), str(tmp_path / "text.txt")]
    assert "reading" not in CliRunner().invoke(app, command).stderr
    monkeypatch.setattr(preparation, "SOON", -1.0)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and done.stderr.count("reading 7 windows\n") == 1  # 440 tokens by half of 128
