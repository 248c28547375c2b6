"""What the documentation promises is there: links, anchors, pages, and the first picture."""

import re
from pathlib import Path
from typing import Any

from archetype.io.yaml import yaml_value
from benchmarks import picture
from tests.helpers.documents import ROOT, anchors, broken_links

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SETTINGS = yaml_value((ROOT / "mkdocs.yml").read_text(), "mkdocs.yml")


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = {page.name: broken_links(page, DOCS) for page in PAGES}
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
    assert sorted(navigated(SETTINGS["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_a_warning_fails_the_build() -> None:
    """`--quiet` drops warnings before `--strict` counts them."""
    (build,) = re.findall(r"^\t.*mkdocs build(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "--strict" in build and not {"--quiet", "-q"} & set(build.partition("#")[0].split())
    assert set(SETTINGS["validation"]["links"].values()) | set(SETTINGS["validation"]["nav"].values()) == {"warn"}


def test_the_picture_is_what_its_script_draws(tmp_path: Path) -> None:
    picture.write(tmp_path / "picture.svg")
    remedy = "draw it again: python -m benchmarks.picture docs/picture.svg"
    assert (tmp_path / "picture.svg").read_bytes() == (DOCS / "picture.svg").read_bytes(), remedy
