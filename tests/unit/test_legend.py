"""One legend of shape letters, obeyed by every signature and every comment at a line's end."""

import re
from collections.abc import Iterator
from pathlib import Path

import archetype
from archetype.legend import LEGEND
from tests.helpers.cases import in_one_test

PACKAGE = Path(archetype.__file__).parent
ANNOTATION = re.compile(r'(?:Float|Int|Bool)\[Tensor, "([^"]*)"\]')
COMMENT = re.compile(r"# \(([\w .]+(?:, [\w .]+)+)\)")
FILES = sorted(
    file for name in ("weights", "nn", "parts", "models", "generate") for file in (PACKAGE / name).rglob("*.py")
)


def sizes(text: str) -> Iterator[str]:
    """Every size that a file's shapes name."""
    for shape in ANNOTATION.findall(text):
        yield from shape.split()
    for shape in COMMENT.findall(text):
        yield from shape.replace(",", " ").split()


def is_known(size: str) -> bool:
    """A letter of the legend, a product of letters, a number, or a word."""
    if size in LEGEND or size.rstrip("0123456789") in ("", "b", "...", "_", "*dims", "or", "-", "+"):
        return True
    return bool(re.fullmatch(r"[a-z_]{4,}", size)) or all(letter in LEGEND for letter in size)


def test_the_walk_finds_shapes() -> None:
    assert len(FILES) > 25
    all_sizes = [size for file in FILES for size in sizes(file.read_text())]
    assert len(all_sizes) > 700 and {"B", "T", "D", "K", "P"} < set(all_sizes)
    assert not any(map(is_known, ("X", "O", "b4x", "xyz")))


@in_one_test("file", FILES)
def test_shapes_use_the_legend(file: Path) -> None:
    assert {size for size in sizes(file.read_text()) if not is_known(size)} == set()


def test_every_letter_of_the_legend_is_used() -> None:
    text = "".join(size for file in FILES for size in sizes(file.read_text()))
    costs = "".join(file.read_text() for file in PACKAGE.rglob("cost.py"))
    assert not {letter for letter in LEGEND if letter not in text and f'"{letter}"' not in costs}
