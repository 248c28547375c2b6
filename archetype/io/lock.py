"""Lock files, so that one process at a time trains a run or writes a file; released when the owner exits."""

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
    """Hold a lock within the block.

    Args:
        folder: folder of the lock file, such as a run directory.
        name: name of the lock file.
        doing: the protected activity, for the message.
        wait: wait until the lock is free.

    Raises:
        CheckpointError: another process holds the lock, or the folder cannot be written to.
    """
    file = folder / name
    descriptor = _open(file, doing, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file: an old one is in nobody's way
            file.unlink()
        os.close(descriptor)


def _open(file: Path, doing: str, wait: bool) -> int:
    """Open and lock the lock file; retry if its last owner has removed it meanwhile."""
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(str(file), f"cannot be written: {error.strerror}", "check the folder") from None
        try:
            _lock(descriptor)
        except OSError as error:
            owner = os.read(descriptor, 20).decode(errors="replace")
            if error.errno in HELD:
                os.close(descriptor)
                if wait:
                    time.sleep(SECONDS_BETWEEN_TRIES)
                    continue
                cause = f"another process{f' ({owner})' if owner else ''} is {doing}"
                raise CheckpointError(str(file.parent), cause, "wait for it, or stop it") from None
            log.warning("%s: this file system has no locks: %s", file, error.strerror)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                os.truncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        os.close(descriptor)


def try_to_lock(folder: Path, wait: bool = False) -> int | None:
    """Lock a folder itself.

    Args:
        folder: an existing folder.
        wait: wait until the lock is free.

    Returns:
        A descriptor; closing it releases the lock. None if another process holds the lock, or locking is unsupported.
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

        os.lseek(descriptor, 2**30, os.SEEK_SET)  # others cannot read what is locked: not the owner's id
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
