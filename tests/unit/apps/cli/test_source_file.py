"""A source a line, and its target in the same line, whatever either holds."""

from pathlib import Path
from typing import Any

import pytest

from archetype.apps.cli.source_file import read_sources, translate_file
from tests.unit.apps.cli.test_made_with import model


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\ntwo", ["one", "two"]),
        ("one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        (" one \n\n\n", [" one ", "", ""]),
        ("\n", [""]),
    ],
)
def test_every_line_is_a_source_as_it_stands(text: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_bytes(text.encode())
    sources = read_sources(tmp_path / "source.txt")
    assert [(source.id, source.text) for source in sources] == [*enumerate(lines, start=1)]


def test_a_target_takes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source.txt").write_text("a\n\nb\n")
    lm = model("translate", 0)

    def translate(texts: list[str], **_: Any) -> list[str]:
        return [f"{text}\nand {text}\n" for text in texts]

    monkeypatch.setattr(lm, "translate", translate)
    translate_file(lm, read_sources(tmp_path / "source.txt"), tmp_path / "target.txt", {})
    assert (tmp_path / "target.txt").read_text() == "a and a\n and \nb and b\n"
