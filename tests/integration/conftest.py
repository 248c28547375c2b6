"""The command line as a user meets it, and one small trained run that the tests share."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.helpers import forked
from tests.helpers.named_options import verb_of, wrong_in_message

Command = Callable[..., subprocess.CompletedProcess[Any]]


@pytest.fixture(scope="session")
def archetype() -> Command:
    """Runs `archetype ...` in a process of its own; a refusal may name only options that its verb has."""

    def run(*arguments: str | Path, input: str | bytes = "", text: bool = True) -> subprocess.CompletedProcess[Any]:
        environment = {"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "NO_COLOR": "1"}
        data = input.encode() if isinstance(input, str) else input
        done = forked.run(["archetype", *map(str, arguments)], environment, data)
        if done.returncode == 2 and (verb := verb_of(" ".join(map(str, arguments[:2])))):
            named = wrong_in_message(verb, done.stderr.decode(errors="replace"))
            assert not (wrong := [one for one in named if one.split()[-1] not in " ".join(map(str, arguments))]), wrong
        if text:
            done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    return run


class Run(Protocol):
    """Runs `archetype ...`, whose exit status must be the one that is named, and returns standard output and error."""

    def __call__(self, *words: str | Path, status: int = 0) -> tuple[str, str]: ...


@pytest.fixture(scope="session")
def run(archetype: Command) -> Run:
    """As `archetype`, for tests that go on with what was printed; a trace fails them."""

    def run(*words: str | Path, status: int = 0) -> tuple[str, str]:
        done = archetype(*words)
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
        return done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some English of this Python's own."""
    import argparse
    import json
    import textwrap

    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join(str(module.__doc__) for module in (json, argparse, textwrap)) * 4)
    return file


@pytest.fixture(scope="session")
def run_directory(archetype: Command, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty steps of llama-tiny on bytes."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    flags = ["--tokenizer", "bytes", "--sequence-length", "32", "--batch-size", "4", "--steps", "20"]
    done = archetype("train", "--spec", "llama-tiny", "--text", text_file, *flags, "--to", folder)
    assert done.returncode == 0, done.stderr
    return folder
