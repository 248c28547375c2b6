"""One place says the name of the distribution; every install command that users read installs a package of ours."""

import ast
import importlib.metadata
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Set
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

import archetype
from archetype import distribution
from archetype.distribution import DISTRIBUTION, install_command, installed_from
from archetype.spec.base import Spec
from archetype.training.trackers import Tracker
from tests.unit.test_imports import MODULES, dotted, nodes

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOLDERS = (
    ".ci", ".github", "archetype", "benchmarks", "claims", "course", "docs", "recipes", "tests", "web",
)  # fmt: skip
TEXT = {"", ".cff", ".ipynb", ".md", ".py", ".svelte", ".toml", ".ts", ".txt", ".yaml", ".yml"}
# The name alone, as pip would take it: `pip install archetype`, `archetype[gguf]`; not a list in a Python annotation.
FOREIGN = re.compile(r"pip install (?:-\S+ )*['\"]?archetype(?![-\w./])|(?<![-\w./])archetype\[(?:[a-z{])")


def texts(suffixes: Set[str] = TEXT) -> Iterator[Path]:
    """Every text file of the repository that somebody wrote, with one of these suffixes."""
    files = [*ROOT.glob("*"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]
    for file in files:
        generated = {"node_modules", "page", "__pycache__"} & set(file.relative_to(ROOT).parent.parts[1:])
        if file.suffix in suffixes and file.is_file() and not generated and file != Path(__file__):
            yield file


@pytest.mark.parametrize(
    "text",
    ["pip install archetype", "pip install 'archetype'", "pip install -U archetype\n", "`archetype[grammar]`",
     "pip install 'archetype[gguf]'", "archetype[{extra}]", "pip install archetype>=1"],
)  # fmt: skip
def test_another_projects_name_is_seen(text: str) -> None:
    assert FOREIGN.search(text)
    assert not FOREIGN.search(text.replace("archetype", DISTRIBUTION))


def test_no_file_sends_users_to_another_projects_package() -> None:
    files = {file: file.read_text(encoding="utf-8") for file in texts()}
    assert len(files) > 500
    assert {str(file.relative_to(ROOT)) for file, text in files.items() if FOREIGN.search(text)} == set()


def test_the_project_has_the_name_and_version_of_the_package() -> None:
    assert (PROJECT["name"], PROJECT["version"]) == (DISTRIBUTION, archetype.__version__)
    assert list(PROJECT["scripts"]) == ["archetype"]
    assert f"{DISTRIBUTION}[" in EXTRAS["test"][0]


def test_every_extra_that_a_message_names_exists() -> None:
    callers = [module for module, file in MODULES.items() if "install_command" in file.read_text(encoding="utf-8")]
    calls = [node for module in callers for node in nodes(module) if isinstance(node, ast.Call)]
    asked = [call.args[0] for call in calls if dotted(call.func) == "install_command"]
    named = {str(argument.value) for argument in asked if isinstance(argument, ast.Constant)}
    assert len(named) >= 10
    trackers = {kind.model_fields["kind"].default for kind in subclasses(Tracker)}
    assert named | trackers | {"ray", "slurm"} <= EXTRAS.keys()


def test_a_remedy_is_right_in_a_checkout_and_where_the_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert install_command("gguf") == "pip install -e '.[gguf]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("gguf") == f"pip install -e '{ROOT}[gguf]'"
    monkeypatch.setattr(distribution, "CHECKOUT", tmp_path)  # as site-packages, where no pyproject.toml is
    for extra in EXTRAS.keys() - {"all", "test", "docs"}:
        quoted = (requirement.partition(";")[0].strip() for requirement in EXTRAS[extra])
        assert sorted(shlex.split(install_command(extra))) == sorted(["pip", "install", *quoted])


@pytest.mark.parametrize(
    ("recorded", "source"),
    [
        (
            {"url": "https://example.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            "git+https://example.org/a.git@1f",
        ),
        ({"url": "file:///home/somebody/archetype", "dir_info": {"editable": True}}, "a checkout"),
        ({"url": "file:///home/somebody/archetype.whl", "archive_info": {}}, "a file"),
        (None, "a package index"),
    ],
)
def test_where_it_was_installed_from_is_said_without_a_path_of_this_machine(
    recorded: dict[str, Any] | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "archetype_lm-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: archetype-lm\nVersion: 0.1.0\n")
    if recorded is not None:
        (installed / "direct_url.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: PathDistribution(installed))
    assert installed_from() == source


def test_one_extra_has_what_users_may_want() -> None:
    """And the server's light packages are not among extras."""
    core = {re.split(r"[<>=]", one)[0] for one in PROJECT["dependencies"]}
    assert core >= {"starlette", "uvicorn", "prometheus-client"}
    every = set(re.findall(r"[\w-]+", EXTRAS["all"][0].partition("[")[2]))
    clusters_and_services = {"ray", "slurm", "wandb", "trackio", "mlflow", "torchao"}
    assert every == EXTRAS.keys() - clusters_and_services - {"all", "test", "docs"}
    assert "[all]" in (ROOT / "README.md").read_text()


def subclasses(kind: type[Spec]) -> list[type[Spec]]:
    """The kinds of trackers that are our own."""
    return [each for each in kind.__subclasses__() if each.__module__.startswith("archetype.")]


def test_the_sdist_holds_everything_that_is_tracked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    included = {path.removeprefix("/") for path in settings["include"]}
    assert {path for path in included if not (ROOT / path).exists()} == set()
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        tracked = {path.partition("/")[0] for path in listed.splitlines()}
        assert tracked - included == {".gitignore", "LICENSE", "README.md", "pyproject.toml"}  # hatchling adds these
