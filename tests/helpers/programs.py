"""Which presets are programs of torch.export and ONNX: `python -m tests.helpers.programs [--with-state] [PRESET...]`.

Each is built with random weights, written, read back and run at other sizes than those of its trace. With `--page`, the
rows of the presets in docs/programs.md are written again.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import archetype
from archetype.api.exporting import export
from archetype.api.loading import build_untrained
from archetype.convert.program.formats import FILES, SIGNATURE, is_program
from archetype.errors import CheckpointError
from archetype.table import Table
from tests.helpers.weights import randomize

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
SIZES = ("constant", "ring", "grows", "context")
Row = tuple[str, ...]


def answer(name: str, format: str, with_state: bool) -> tuple[str, Mapping[str, Any]]:
    """Yes, or the refusal, and the signature."""
    assert is_program(format)
    lm = build_untrained(name)
    randomize(lm.model)
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(lm, Path(folder) / "program", format=format, with_state=with_state)
        except CheckpointError as error:
            return str(error), {"state": ()}
        return "yes", json.loads((Path(folder) / "program" / SIGNATURE).read_text())


def causal_presets() -> list[str]:
    """The tiny presets that continue a text."""
    tiny = [name for name in archetype.presets() if name.endswith("-tiny")]
    return [name for name in tiny if archetype.load_spec(name).continues_text]


def row_of(name: str, answers: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Row:
    """A row of the page: the answers of the formats, and how many tensors of the state have a size of each kind."""
    counts = Counter(entry["size"] for entry in entries)
    return (f"`{name}`", *answers, *(str(counts[size] or "") for size in SIZES))


def rows_of_page() -> dict[str, Row]:
    """The rows of the page by preset."""
    cells = [
        tuple(cell.strip() for cell in line.strip("|\n").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row for row in cells}


def write_page(rows: Mapping[str, Row]) -> None:
    """Write the table of the page, in the order of the presets."""
    before, _, _ = PAGE.read_text().partition("| preset |")
    headings = ("preset", *FILES, *SIZES)
    lines = [headings, ("---",) * len(headings), *(rows[name] for name in causal_presets() if name in rows)]
    PAGE.write_text(before + "".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    options = {"--with-state", "--page"} & {*sys.argv}
    named = [name for name in sys.argv[1:] if name not in options]
    is_step = bool(options)
    presets = named or ([*causal_presets()] if is_step else [n for n in archetype.presets() if n.endswith("-tiny")])
    rows = {}
    for name in presets:
        answers = [answer(name, format, is_step) for format in FILES]
        rows[name] = row_of(name, [said for said, _ in answers], answers[0][1].get("state", ()))
    if "--page" in options:
        write_page(rows_of_page() | rows)
    else:
        print(Table(("preset", *FILES, *SIZES), [*rows.values()], text_columns=3))
