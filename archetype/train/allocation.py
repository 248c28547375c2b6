"""Memory that one step frees and the next one asks for again."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # as malloc.h of glibc numbers them
MOST = 2**31 - 1


def keep_freed_memory() -> None:
    """Let this process keep what it frees, where its C library is glibc.

    By default large blocks go back to the system, which clears every page anew for the step that asks next. Without
    mapped blocks and trimming they stay. For programs that do nothing but train; a library must not decide this.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, MOST)
