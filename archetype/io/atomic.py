"""Atomic writes: a file or folder appears whole under its name, or not at all.

Temporary name, write, flush, fsync, rename, fsync of the folder. A failed write removes its temporary files and is
reported in one line.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archetype.errors import ArchetypeError, CheckpointError

WINDOWS = os.name == "nt"
REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space or choose another folder")
REMEDIES |= dict.fromkeys((errno.EACCES, errno.EPERM), "choose a folder that you may write to")
REMEDIES[errno.EROFS] = "choose a folder that is not read-only"


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file's contents."""
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a file's contents by a JSON object."""
    write_bytes(path, (json.dumps(data, indent=2) + "\n").encode())


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by the one that `write` makes.

    Args:
        path: of the file.
        write: is called with the temporary path to write to.

    Raises:
        CheckpointError: it cannot be written.
    """
    with _system_errors(path):
        temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            write(temporary)
            temporary.chmod(0o666 & ~_umask())
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add one line to a log."""
    with _system_errors(path), path.open("a") as file:
        file.write(line + "\n")


def append_bytes(path: Path, data: bytes) -> None:
    """Add bytes to a file."""
    with _system_errors(path), path.open("ab") as file:
        file.write(data)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and check that it can be written to."""
    with _system_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` only when the block ends without an error.

    Raises:
        CheckpointError: `path` exists and is not an empty folder, or cannot be written.
    """
    check_absent(path)
    with _system_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            _sync(temporary)
            if path.exists():
                path.rmdir()
            temporary.replace(path)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a kill in the middle of a write has left in a folder that nobody else writes to."""
    for path in folder.glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def check_absent(path: Path) -> None:
    """Refuse a path that exists, unless it is an empty folder."""
    with _system_errors(path):
        if path.is_dir() and not any(path.iterdir()):
            return
        exists = path.exists() or path.is_symlink()
    if exists:
        raise CheckpointError(str(path), "exists already", "choose another folder or remove it")


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors into a CheckpointError; safetensors' writer reports them as its own."""
    try:
        yield
    except ArchetypeError:
        raise
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "check the path")
        raise CheckpointError(str(path), f"cannot be written: {error.strerror or error}", remedy) from None


def _sync(path: Path) -> None:
    """Flush a file or a folder to the disk; Windows flushes no folders, and only files that are open for writing."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
