"""Atomic writes: a file or folder appears completely under its name, or not at all.

A failed write removes its temporary files. A killed process leaves them until the next write to the same target.
"""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from archetype.errors import ArchetypeError, CheckpointError
from archetype.io.files import open_at_once
from archetype.io.lock import try_to_lock

WINDOWS = os.name == "nt"
REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space or choose another folder")
REMEDIES |= dict.fromkeys((errno.EACCES, errno.EPERM), "choose a folder that you may write to")
REMEDIES |= {
    errno.EROFS: "choose a folder that is not read-only",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another file system",
    errno.EIO: "the disk may be failing: check the system log, or choose another disk",
}
REFUSED = "cannot be written: "
IN_TEXT = re.compile(r"\(os error (\d+)\)")  # in the errors of Rust libraries
SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # in numpy's error, which has no errno


def write_bytes(path: Path, data: bytes) -> None:
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(data, indent=2) + "\n").encode())


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file with the output of `write`, which is called with a temporary path.

    Raises:
        CheckpointError: the file cannot be written, or is a pipe or device, which must not be replaced.
    """
    with system_errors(path):
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise CheckpointError(str(path), f"is {kind}", "choose another name")
    with _temporary_folder(path) as folder:
        temporary = folder / path.name
        write(temporary)
        # mkdtemp makes the folder and its files private; give the file the usual mode
        temporary.chmod(0o666 & ~_umask())
        # data before the rename, so that a crash never leaves the new name with partial data ...
        _sync(temporary)
        temporary.replace(path)
        # ... and the folder after it, so that the rename itself survives a crash
        _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    append_bytes(path, f"{line}\n".encode())


def append_bytes(path: Path, data: bytes) -> None:
    with system_errors(path), open(path, "ab", opener=open_at_once) as file:
        file.write(data)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and check that it can be written to."""
    with system_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # mode bits are not reliable for every user and file system
            pass


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. Rename it to `path` if the block ends without an error.

    Raises:
        CheckpointError: `path` exists and is not an empty folder, or cannot be written.
    """
    check_absent(path)
    with system_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(path) as temporary:
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        _sync(temporary)
        if path.exists():
            # an empty folder, by `check_absent`; Windows cannot rename onto it
            path.rmdir()
        temporary.replace(path)
        _sync(path.parent)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    # next to `path`, so that a rename stays on one file system; errors name `path` instead of the folder
    with system_errors(path):
        _remove_remains(path)
        temporary, lock = _locked_folder(path)
        try:
            yield temporary
        except CheckpointError as error:
            parts = (text.replace(str(temporary), str(path)) for text in (error.place, error.cause, error.remedy))
            raise type(error)(*parts) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _locked_folder(path: Path) -> tuple[Path, int | None]:
    # the lock shows other processes that the folder is in use; None if the system cannot lock folders
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        lock = try_to_lock(folder, wait=True)
        if folder.exists():  # another process may have removed it as stale before it was locked
            return folder, lock
        if lock is not None:
            os.close(lock)


def _remove_remains(path: Path) -> None:
    # temporary folders of processes that died while writing `path`
    name = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}\.partial")  # naming scheme of `tempfile`
    with suppress(OSError):
        for folder in [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)]:
            if (lock := try_to_lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder in the system's temporary directory (TMPDIR) and remove it after the block.

    Raises:
        CheckpointError: the folder cannot be created, or the disk is full.
    """
    with system_errors(Path(os.environ.get("TMPDIR", "TMPDIR"))):
        folder = Path(tempfile.mkdtemp(prefix="archetype-"))
    try:
        yield folder
    except CheckpointError as error:
        if not error.place.startswith(str(folder)) or not error.cause.startswith(REFUSED):
            raise
        raise CheckpointError(str(folder.parent), error.cause, "set TMPDIR to a folder with more space") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    for path in folder.glob(".*.partial"):
        # without asking for locks: no other process may write to this folder
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def check_absent(path: Path) -> None:
    with system_errors(path):
        if path.is_dir() and not any(path.iterdir()):
            return
        exists = path.exists() or path.is_symlink()
    if exists:
        raise CheckpointError(str(path), "already exists", "choose another folder or remove it")


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Convert system errors that any library raises in the block to a CheckpointError at `path`."""
    try:
        yield
    except ArchetypeError:
        raise
    except OSError as error:
        raise refused(path, error) from None


def refused(path: Path, error: Exception) -> CheckpointError:
    # errors of Rust libraries and of numpy carry the code in their text, or not at all
    code = getattr(error, "errno", None)
    if code is None and (match := IN_TEXT.search(str(error))):
        code = int(match[1])
    cause = " ".join(str(error).split()) if code is None else os.strerror(code)
    remedy = REMEDIES.get(code or 0, "check the path")
    if code is None and SHORT_WRITE.fullmatch(cause):
        cause, remedy = "only a part of it was written", REMEDIES[errno.ENOSPC]
    return CheckpointError(str(path), f"{REFUSED}{cause}", remedy)


def _sync(path: Path) -> None:
    # Windows can only flush files that are open for writing
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    # the mask can only be read by setting it
    mask = os.umask(0)
    os.umask(mask)
    return mask
