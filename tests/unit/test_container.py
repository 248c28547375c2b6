"""The Dockerfile: what it copies is there, what it installs exists, and its program starts as it says."""

import fnmatch
import json
import re
import tomllib

import typer

from archetype.apps.cli import main
from tests.helpers.documents import ROOT

LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
INSTRUCTIONS = [(word, rest) for word, _, rest in (line.partition(" ") for line in LINES) if word and word[0] != "#"]
KNOWN = {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}


def of(instruction: str) -> list[str]:
    return [rest for word, rest in INSTRUCTIONS if word == instruction]


def test_it_has_two_stages_and_ends_as_a_user_without_rights() -> None:
    assert {word for word, _ in INSTRUCTIONS} == KNOWN
    stages = of("FROM")
    assert len(stages) == 2 and stages[0] == f"{stages[1]} AS build"  # one Python: the environment is moved
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.fullmatch(r"python:(3\.\d+)-slim", stages[1])
    assert version and f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    last = [word for word, _ in INSTRUCTIONS][::-1]
    assert last.index("USER") < last.index("RUN") and of("USER") != ["root"]
    assert f"useradd --create-home {of('USER')[0]}" in of("RUN")


def test_what_it_copies_is_there_and_what_it_installs_exists() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in of("COPY"):
        *sources, _ = line.split()
        if sources[0].startswith("--from="):
            assert sources == ["--from=build", f"{of('WORKDIR')[0].replace('source', 'opt')}/archetype"]
            continue
        for source in sources:
            assert (ROOT / source).exists() and f"!{source}" in ignored, source
            assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored[1:] if pattern[0] != "!")
    (install,) = [line for line in of("RUN") if '".[' in line]
    extras = re.findall(r"\w+", install.partition('".[')[2].partition("]")[0])
    assert {*extras} <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    copied = " ".join(of("COPY"))
    assert all(name in copied for name in ("hatch_build.py", "README.md", "LICENSE", "web", "constraints.txt"))


def test_its_program_and_its_look_at_health_are_those_of_the_command_line() -> None:
    program, verb, *options = json.loads(of("ENTRYPOINT")[0])
    assert program == "archetype"
    command = typer.main.get_command(main.app).get_command(None, verb)  # type: ignore[attr-defined]
    port = next(one.default for one in command.params if one.name == "port")
    context = command.make_context(verb, [*options, "model"])
    assert context.params["host"] == "0.0.0.0" and of("EXPOSE") == [str(port)]
    assert f"127.0.0.1:{port}/health" in json.loads(of("HEALTHCHECK")[0].removeprefix("CMD "))[2]


def test_the_readme_runs_it_from_a_checkout() -> None:
    text = (ROOT / "README.md").read_text()
    assert "uvx --from . archetype " in text and "docker build --tag archetype ." in text
