"""File locks, which let one process at a time train a run or write a file. A lock is released when its owner exits."""

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from archetype.errors import CheckpointError

FILE = ".lock"
SECONDS_BETWEEN_TRIES = 0.2
HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path, name: str = FILE, doing: str = "training this run", wait: bool = False) -> Iterator[None]:
    """Hold the lock file `name` in a folder while the context is open.

    Args:
        doing: the protected activity, for error messages.
        wait: whether to wait until the lock is free.

    Raises:
        CheckpointError: another process holds the lock, or the folder cannot be written to.
    """
    file = folder / name
    descriptor = _open(file, doing, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file; an old lock file does no harm
            file.unlink()
        os.close(descriptor)


def _open(file: Path, doing: str, wait: bool) -> int:
    while True:  # until the locked file is still the one in the folder: its last owner may just have removed it
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(str(file), f"cannot be written: {error.strerror}", "check the folder") from None
        try:
            _lock(descriptor)
        except OSError as error:
            # the owner writes its process id into the file, below
            owner = os.read(descriptor, 20).decode(errors="replace")
            if error.errno in HELD:
                os.close(descriptor)
                if wait:
                    time.sleep(SECONDS_BETWEEN_TRIES)
                    continue
                cause = f"another process{f' ({owner})' if owner else ''} is {doing}"
                raise CheckpointError(str(file.parent), cause, "wait for it, or stop it") from None
            # go on without a lock: some network file systems have none
            log.warning("%s: this file system has no locks: %s", file, error.strerror)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                os.truncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        os.close(descriptor)


def try_to_lock(folder: Path, wait: bool = False) -> int | None:
    """Lock an existing folder. If `wait` is set, wait until the lock is free.

    Returns:
        A descriptor that releases the lock when closed; None if another process holds it or locking is unsupported.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return None
    try:
        _lock(descriptor, wait)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _lock(descriptor: int, wait: bool = False) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 2**30, os.SEEK_SET)  # locked bytes cannot be read, so the owner's id is left unlocked
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
