"""The command line: one file for each group of verbs. Modules import nothing heavy before a verb runs."""

import os

# a search for installed plugins that specifications do not use; it takes as long as a whole verb may
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Threads that wait for each other sleep rather than spin: spinning, a training step took many times as long when
# another process wanted a core (docs/results.md). It must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Large blocks in large pages: a training step takes and frees many, and every page costs time (docs/results.md). Torch
# reads this at its first allocation; where the system has no such pages nothing changes.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
