"""The notebooks of examples/ run from their first cell to their last, and hold no outputs."""

import json
from pathlib import Path

import pytest

from tests.helpers import forked

NOTEBOOKS = sorted((forked.ROOT / "examples").glob("*.ipynb"))
assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path) -> None:
    """All code cells in one process; what a cell ends with is drawn as a notebook draws it."""
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and not any(cell["outputs"] for cell in cells)
    lines = []
    for cell in cells:
        lines += "".join(cell["source"]).splitlines()
        if lines[-1].isidentifier():
            lines.append(f"assert {lines.pop()}._repr_html_()")
    done = forked.run(["python", "-c", "\n".join(lines)], {"PYTHONWARNINGS": "error"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
