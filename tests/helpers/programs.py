"""Which presets are programs of torch.export and ONNX: `python -m tests.helpers.programs [--with-state] [PRESET...]`.

Each is built with random weights, written, read back and run at other sizes than those of its trace.
"""

import sys
import tempfile
from pathlib import Path

import archetype
from archetype.api.exporting import export
from archetype.api.loading import build_untrained
from archetype.convert.program.formats import FILES, is_program
from archetype.errors import CheckpointError
from archetype.table import Table
from tests.helpers.weights import randomize


def answer(name: str, format: str, with_state: bool) -> str:
    """Yes, or the refusal."""
    assert is_program(format)
    lm = build_untrained(name)
    randomize(lm.model)
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(lm, Path(folder) / "program", format=format, with_state=with_state)
        except CheckpointError as error:
            return str(error)
    return "yes"


if __name__ == "__main__":
    with_state, named = "--with-state" in sys.argv, [name for name in sys.argv[1:] if name != "--with-state"]
    presets = named or [name for name in archetype.presets() if name.endswith("-tiny")]
    rows = [(name, *(answer(name, format, with_state) for format in FILES)) for name in presets]
    print(Table(("preset", *FILES), rows, text_columns=3))
