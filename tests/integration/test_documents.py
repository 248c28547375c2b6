"""What the documents say is true: their commands run, their code is the code, their links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from archetype.io.yaml import yaml_value
from archetype.spec import parse, to_yaml
from tests.helpers import forked

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def test_the_examples_of_the_readme_run_in_order(tmp_path: Path) -> None:
    """In one shell each; its `archetype` and `python` are forked from a process that has loaded torch."""
    environment = {"PATH": f"{forked.programs()}:{os.environ['PATH']}", "PYTHONWARNINGS": "error"}
    examples = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert {language for language, _ in examples} == {"sh", "python"} and len(examples) >= 7
    for language, text in examples:
        if language == "sh":
            shell = ["bash", "-e", "-o", "pipefail", "-c", text]
            done = subprocess.run(shell, cwd=tmp_path, env=os.environ | environment, capture_output=True)
        else:
            done = forked.run(["python", "-c", text], environment, cwd=tmp_path)
        assert done.returncode == 0, (text, done.stdout.decode(), done.stderr.decode())
    (specification,) = blocks(ROOT / "README.md", "yaml")
    assert (tmp_path / "mine.yaml").read_text() == specification
    assert to_yaml(parse(yaml_value(specification, "README.md"))) == specification


def test_what_the_readme_shows_of_a_mistake_is_what_is_said() -> None:
    mistakes = blocks(ROOT / "README.md", "console")
    assert mistakes
    for text in mistakes:
        command, _, output = text.partition("\n")
        assert command.startswith("$ archetype ")
        done = forked.run(shlex.split(command.removeprefix("$ ")))
        assert (done.stdout + done.stderr).decode() == output
        assert done.returncode == 2


def test_code_that_the_guides_quote_stands_in_the_file_that_is_named() -> None:
    guide = (ROOT / "docs" / "adding_a_part.md").read_text()
    quotes = re.findall(r'```python title="(archetype/[^"]+)"\n(.*?)```', guide, re.DOTALL)
    assert quotes
    for file, text in quotes:
        for definition in text.strip().split("\n\n\n"):
            assert definition.strip() in (ROOT / file).read_text(), definition


def test_python_of_the_documents_passes_a_strict_type_checker(tmp_path: Path) -> None:
    files = []
    for document in DOCUMENTS:
        if code := blocks(document, "python"):
            files.append(tmp_path / f"{document.stem.lower()}_blocks.py")
            files[-1].write_text("\n".join(code))
    assert files
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_and_named_files_exist() -> None:
    missing, number = [], 0
    for document in DOCUMENTS:
        text = document.read_text()
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("https://")]
        files = re.findall(r"`((?:archetype|tests|docs|benchmarks|recipes)/[\w/.]+\.\w+)`", text)
        paths = [*(document.parent / link for link in links), *(ROOT / file for file in files)]
        missing += [f"{document.name}: {path}" for path in paths if not path.exists()]
        number += len(paths)
    assert missing == []
    assert number > 20
