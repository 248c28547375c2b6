"""What the documentation promises is there: links, anchors, pages, the schemas of our files, and its first picture."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import matplotlib
import pytest

import archetype
import mkdocs_hooks
from archetype import distribution
from archetype.apps.cli.main import app
from archetype.data.skipping import Skipped
from archetype.distribution import schema_url
from archetype.io.figure_file import figure_bytes
from archetype.io.yaml import read_mapping, with_schema_line, yaml_value
from archetype.runs.directory import Run, write_run_spec
from archetype.spec.serialize import document_schema
from archetype.training.provenance import write_recipe
from archetype.training.recipe import Recipe
from benchmarks import picture
from tests.helpers.documents import ROOT, anchors, broken_links

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REPORTS = sorted(mkdocs_hooks.REPORTS.glob("*.md"))
SETTINGS = yaml_value((ROOT / "mkdocs.yml").read_text(), "mkdocs.yml")


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = {page.name: broken_links(page, DOCS) for page in PAGES}
    broken |= {report.name: broken_links(report, mkdocs_hooks.REPORTS) for report in REPORTS}
    broken |= {document.name: broken_links(document, ROOT) for document in ROOT.glob("*.md")}
    assert {name: links for name, links in broken.items() if links} == {}


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Data of `any` size\n\n```sh\n# no heading\n```\n")
    assert anchors(tmp_path / "b.md") == {"data-of-any-size"}
    (tmp_path / "a.md").write_text(
        "# Top\n[1](b.md) [2](b.md#data-of-any-size) [3](#top) [4](https://example.org/x)\n"
        "[5](c.md) [6](b.md#no-heading) [7](#bottom) ![8](c.svg) [9](../README.md)\n"
    )
    assert broken_links(tmp_path / "a.md", tmp_path) == ["c.md", "b.md#no-heading", "#bottom", "c.svg", "../README.md"]


def navigated(entry: Any) -> list[str]:
    """Every page of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for inner in (entry.values() if isinstance(entry, dict) else entry) for page in navigated(inner)]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [*(page.relative_to(DOCS).as_posix() for page in PAGES), *(f"studies/{report.name}" for report in REPORTS)]
    assert len(REPORTS) > 25 and sorted(navigated(SETTINGS["nav"])) == sorted(pages)


def test_a_warning_fails_the_build() -> None:
    """`--quiet` drops warnings before `--strict` counts them."""
    (build,) = re.findall(r"^\t.*mkdocs build(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "--strict" in build and not {"--quiet", "-q"} & set(build.partition("#")[0].split())
    assert set(SETTINGS["validation"]["links"].values()) | set(SETTINGS["validation"]["nav"].values()) == {"warn"}


def test_the_picture_is_what_its_script_draws() -> None:
    pinned = re.search(r"^matplotlib==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if pinned is None or matplotlib.__version__ != pinned[1]:
        pytest.skip("each version of matplotlib writes another SVG, and the picture is that of constraints.txt")
    remedy = "draw it again: python -m benchmarks.picture docs/picture.svg"
    assert figure_bytes(picture.draw(), ".svg") == (DOCS / "picture.svg").read_bytes(), remedy


@pytest.mark.parametrize("kind", mkdocs_hooks.SCHEMAS)
def test_a_schema_has_an_address_once_the_site_has_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SETTINGS["hooks"] == ["mkdocs_hooks.py"]
    schema = mkdocs_hooks.SCHEMAS[kind]()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "$id" not in schema and schema["title"] == f"Archetype {kind}"
    assert with_schema_line("a: 1", kind) == "a: 1"
    monkeypatch.setattr(distribution, "SITE", "https://example.org/")
    assert document_schema(kind, {})["$id"] == schema_url(kind) == f"https://example.org/schemas/{kind}.json"
    assert with_schema_line("a: 1", kind) == f"# yaml-language-server: $schema={schema_url(kind)}\na: 1"


@pytest.mark.parametrize(("verb", "kind"), [("schema", "specification"), ("compare schema", "experiment")])
def test_a_schema_is_written_to_a_file(
    verb: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app([*verb.split(), "--to", str(tmp_path / "schema.json")], standalone_mode=False)
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "schema.json").read_text()) == mkdocs_hooks.SCHEMAS[kind]()


def test_a_run_directory_has_files_that_obey_their_schemas(tmp_path: Path) -> None:
    run, spec = Run(tmp_path), archetype.load_spec("llama-tiny")
    write_run_spec(run, spec)
    recipe = Recipe.parse({"spec": "llama-tiny", "steps": 3, "trackers": ["tensorboard"]})
    objective = SimpleNamespace(description="", fingerprint="none", guessing_loss=lambda spec: None, teacher=None)
    write_recipe(run, recipe, spec, objective, Skipped(0))  # type: ignore[arg-type]
    for file, kind in ((run.spec_file, "specification"), (run.recipe_file, "recipe")):
        assert "http" not in file.read_text()
        jsonschema.Draft202012Validator(mkdocs_hooks.SCHEMAS[kind]()).validate(read_mapping(file))


def test_recipes_of_the_repository_obey_their_schema() -> None:
    schema = jsonschema.Draft202012Validator(mkdocs_hooks.SCHEMAS["recipe"]())
    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    assert len(recipes) >= 5
    for file in recipes:
        schema.validate(json.loads(json.dumps(read_mapping(file))))


def test_presets_obey_the_published_schema() -> None:
    schema = jsonschema.Draft202012Validator(mkdocs_hooks.SCHEMAS["specification"]())
    for name in archetype.presets():
        schema.validate(archetype.load_spec(name).dump())
