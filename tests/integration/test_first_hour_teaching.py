"""The first hour of a teacher: four kinds of model on one text, their curves, a tokenizer, and a look inside."""

import json
from pathlib import Path

from tests.integration.conftest import Run


def test_four_models_learn_and_are_looked_at(run: Run, shared: Path, tmp_path: Path) -> None:
    text, runs = tmp_path / "text.txt", tmp_path / "runs"
    text.write_text((shared / "tinyshakespeare" / "input.txt").read_text()[:30_000])
    names = ("bigram", "rnn", "lstm", "llama")
    flags = ("--tokenizer", "bytes", "--steps", "6", "--batch-size", "4", "--sequence-length", "32")
    for name in names:
        run("train", "--spec", f"{name}-tiny", "--text", text, *flags, "--to", runs / name)
    assert len(json.loads(run("runs", runs, "--json")[0])["runs"]) == 4
    run("plot", *(runs / name for name in names), "--to", tmp_path / "losses.png")
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")

    run("tokenizer", "train", "--text", text, "--kind", "byte_bpe", "--vocab-size", "300", "--to", tmp_path / "bpe")
    assert run("tokenizer", "encode", tmp_path / "bpe", "First Citizen")[0].strip()
    look = ("inspect", runs / "llama", "First Citizen")
    for view in ("summary", "attention", "lens", "residual"):
        assert json.loads(run(*look, "--view", view, "--json")[0])
    assert "did you mean lens?" in run(*look, "--view", "lenz", status=2)[1]
    run("inspect", runs / "lstm", "First", "--view", "attention", status=2)
    run("inspect", runs / "lstm", "First", "--view", "recurrent")
