"""Memory that one step frees and the next one asks for again."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as malloc.h of glibc numbers them
MAX_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc; elsewhere nothing changes.

    By default large blocks go back to the system, which clears every page anew for the step that asks next. Without
    mapped blocks and trimming they stay. For programs that do nothing but train; a library must not decide this.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, MAX_INT)
