"""The command line: one file for each group of commands. Heavy modules are imported when a command runs."""

import os
import sys

# pydantic's search for installed plugins can take as long as a whole command; specifications use none
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Threads that wait for each other sleep rather than spin while a model is trained: spinning, a step took many times as
# long when another process wanted a core (docs/log/training_speed.md). Elsewhere they spin for some microseconds first:
# a prefill has hundreds of short regions, and to wake a thread takes as long as one of them. Both are read when torch
# is loaded.
if {"train", "demo"} & {*sys.argv[1:3]}:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
else:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Large blocks in large pages: a training step takes and frees many, and every page costs time
# (docs/log/training_speed.md). Torch reads this at its first allocation; where the system has no such pages nothing
# changes.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
