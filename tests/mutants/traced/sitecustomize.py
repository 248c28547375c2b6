"""What the processes of a test call: Python imports this file by itself in each process on whose path its folder is.

A process may be killed, replaced or left without memory at any time, so that each function is written down when it is
first called.
"""

import contextlib
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

VARIABLE = "ARCHETYPE_RECORD_PROCESSES"  # the file to write to, and the folder of the package


def record(file: str, package: str) -> None:
    """Write the functions of a package that this process calls from now on, and those forked from it."""
    called: set[CodeType] = set()
    os.register_at_fork(after_in_child=called.clear)

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code in called:
            return
        called.add(code)
        if code.co_filename.startswith(package):
            line = f"{code.co_filename[len(package) :]}\t{code.co_qualname}\n"
            # a disk may be full on purpose
            with contextlib.suppress(OSError), open(file, "a") as log:  # noqa: PTH123 in all processes
                log.write(line)

    threading.settrace(trace)
    sys.settrace(trace)


if os.environ.get(VARIABLE):
    record(*os.environ[VARIABLE].split(os.pathsep))
