"""Worker process that trains runs one after another: python -m archetype.studies.worker STORE KEYS PARENT."""

import sys
from pathlib import Path

from archetype.machine.allocation import keep_freed_memory
from archetype.studies.execute import Stopped
from archetype.studies.store import Store
from archetype.studies.sweep import STOPPED, work_through


def main(arguments: list[str]) -> int:
    """Train the listed runs that no other process trains. Return 0 when done, or STOPPED after a stop signal."""
    folder, keys, parent, *extensions = arguments
    for file in extensions:
        from archetype.api.extension import load_extension

        load_extension(Path(file))
    keep_freed_memory()
    store = Store(Path(folder))
    try:
        work_through(store, Path(keys).read_text().split(), parent=int(parent))
    except Stopped:
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
