"""What the documents say is true: their commands run, their code is the code, their links lead somewhere."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from archetype.families import published
from archetype.io.yaml import yaml_value
from archetype.spec import parse, to_yaml
from tests.helpers import forked
from tests.helpers.documents import GUIDES, ROOT, blocks, files_of
from tests.helpers.packages import install
from tests.unit.test_names import RENAMED

RUNNABLE = {"sh", "python", "console"}
INSTALLS = [
    document
    for document in GUIDES
    if any(language == "sh" and "python -m pip install" in text for language, _, text in blocks(document))
]
RUNS = [
    pytest.param(document, whole, marks=pytest.mark.slow if whole else (), id=f"{document.stem}-{length}")
    for whole, length in ((False, "shorter"), (True, "whole"))
    for document in GUIDES
    if whole or document not in INSTALLS
]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def run_block(language: str, text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a block; the output that a `console` block shows after each `$ command` is what the command prints."""
    match language:
        case "sh":
            shell = ["bash", "-e", "-o", "pipefail", "-c", text]
            done = subprocess.run(shell, cwd=folder, env=os.environ | environment, capture_output=True)
        case "python":
            done = forked.run(["python", "-c", text], environment, cwd=folder)
        case _:
            commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
            assert commands
            for command, output in commands:
                done = forked.run(shlex.split(command), environment, cwd=folder)
                said = re.sub(r"(?m)^(?:device:|checking) .*\n", "", done.stderr.decode())  # no part of documents
                assert done.stdout.decode() + said == output
                assert done.returncode == (2 if output.startswith("archetype: ") else 0)
            return
    assert done.returncode == 0, (text, done.stdout.decode(), done.stderr.decode())


def shorter(text: str) -> str:
    """Commands with one or two of their steps, and with less text to train on."""
    text = re.sub(r"(--steps) (\d)\d+", lambda steps: f"{steps[1]} {min(int(steps[2]), 2)}", text)
    return text.replace("pydoc str list dict int float bytes set", "pydoc str list dict")


@pytest.mark.parametrize(("document", "whole"), RUNS)
def test_a_document_runs_in_order(document: Path, whole: bool, tmp_path: Path) -> None:
    """Its files are written, its blocks run; `archetype` and `python` are forked from a process with torch."""
    runnable = [
        (language, text if whole else shorter(text))
        for language, title, text in blocks(document)
        if not title and language in RUNNABLE
    ]
    environment = {"PATH": f"{forked.programs()}:{os.environ['PATH']}"}
    if document in INSTALLS:
        install(tmp_path / ".index", "g2p-fa")  # or skip
    else:
        environment["PYTHONWARNINGS"] = "error"  # but of what others wrote
    environment["HF_HOME"] = str(tmp_path / ".cache")  # where the data of tasks are kept
    if not whole:  # compilers take two thirds of the time of `archetype check`, and the soak hears them
        environment["TORCHDYNAMO_DISABLE"] = "1"
    for name, text in files_of(document).items():
        (tmp_path / name).write_text(text)
    for language, text in runnable:
        run_block(language, text, tmp_path, environment)
    for language, title, text in blocks(document):
        if language == "yaml" and not title:  # what a command before it has written
            written = [file.read_text() for file in tmp_path.glob("*.yaml")]
            assert text in written
            assert to_yaml(parse(yaml_value(text, document.name))) == text


def test_documents_have_blocks_of_every_language() -> None:
    languages = {language for document in GUIDES for language, title, _ in blocks(document) if not title}
    assert {*RUNNABLE, "yaml"} <= languages
    assert len([document for document in GUIDES if blocks(document)]) >= 7


def test_code_that_the_guides_quote_stands_in_the_file_that_is_named() -> None:
    quotes = [(title, text) for document in GUIDES for _, title, text in blocks(document) if "/" in title]
    assert len(quotes) >= 3
    for file, text in quotes:
        for passage in text.strip().split("\n\n"):
            assert passage.strip() in (ROOT / file).read_text(), passage


def test_named_files_exist() -> None:
    missing, number = [], 0
    for document in DOCUMENTS:
        files = re.findall(r"`((?:archetype|claims|tests|docs|benchmarks|recipes)/[\w/.]+\.\w+)`", document.read_text())
        paths = [ROOT / file for file in files]
        missing += [f"{document.name}: {path}" for path in paths if not path.exists()]
        number += len(paths)
    assert missing == []
    assert number > 20


def test_documents_use_the_names_as_they_are() -> None:
    """No code in them has a name that was given up; the changelog alone says what each was."""
    old = {}
    for document in DOCUMENTS:
        if document.name != "CHANGELOG.md":
            spans = re.findall(r"`([^`\n]+)`", document.read_text())
            code = " ".join([*spans, *(text for *_, text in blocks(document))])
            old[document.name] = RENAMED.keys() & set(re.findall(r"(?<![-\w])\w+", code))  # no words of options
    assert len(old) >= 10
    assert {name: names for name, names in old.items() if names} == {}


def test_the_counts_of_the_readme_are_those_of_the_registry_and_of_the_zoo() -> None:
    readme, zoo = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/zoo.md"))
    counted = re.search(r"Of (\d+) types, (\d+) are read", zoo)
    said = re.search(r"Of the (\d+) causal model types of transformers [\d.]+, (\d+) load", readme.replace("\n", " "))
    assert counted is not None and said is not None and counted.groups() == said.groups()
    assert f"weights of {len(published())} model types" in readme.replace("\n", " ")
