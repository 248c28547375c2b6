"""Memory that one step frees and the next one asks for again."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # as malloc.h of glibc numbers them
MAX_INT = 2**31 - 1
LARGE = 2**25  # bytes of a block that may always go back: glibc takes no larger number


def keep_freed_memory(limit: int | None = None) -> None:
    """Let this process keep memory that it frees, where its C library is glibc; elsewhere nothing changes.

    By default large blocks go back to the system, which clears every page anew for the step that asks next. Without
    mapped blocks and trimming they stay. For programs that do nothing else; a library must not decide this.

    Args:
        limit: bytes that may stay, in blocks below 32 MiB; None keeps all.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return
    if limit is None:
        mallopt(M_MMAP_MAX, 0)
    else:
        mallopt(M_MMAP_THRESHOLD, LARGE)
    mallopt(M_TRIM_THRESHOLD, MAX_INT if limit is None else limit)
