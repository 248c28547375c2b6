"""Keep memory that one step frees for the next step."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # from glibc's malloc.h
MAX_INT = 2**31 - 1
LARGE = 2**25  # bytes; the largest M_MMAP_THRESHOLD that glibc accepts


def keep_freed_memory(limit: int | None = None) -> None:
    """Make this process keep memory that it frees, if its C library is glibc.

    By default, glibc returns large blocks to the system, which clears their pages again when the next step allocates
    them. This affects the whole process, so call it from programs, not from library code.

    Args:
        limit: bytes to keep, in blocks below 32 MiB; None keeps everything.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl does not have it
    if mallopt is None:
        return
    if limit is None:  # never allocate a block by mmap, which would be returned when freed
        mallopt(M_MMAP_MAX, 0)
    else:
        mallopt(M_MMAP_THRESHOLD, LARGE)
    mallopt(M_TRIM_THRESHOLD, MAX_INT if limit is None else limit)
