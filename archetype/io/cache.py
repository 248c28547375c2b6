"""Cache folder for compiled kernels and tokenized documents."""

import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

from archetype.errors import Notice


def cache_folder() -> Path:
    """Return `archetype` in XDG_CACHE_HOME or ~/.cache, or a temporary folder if the cache is not writable.

    Warns:
        Notice: a temporary folder is used (warned once).
    """
    return _writable(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111  # any home


@cache
def _writable(caches: str) -> Path:
    folder = Path(caches) / "archetype"
    try:
        _check_writable(folder)
    except OSError as error:
        instead = _own_temporary_folder()
        cause = f"cannot be written to ({error.strerror}); caches go to {instead}"
        warnings.warn(Notice(f"{folder}: {cause}, unless XDG_CACHE_HOME names another folder"), stacklevel=2)
        return instead
    return folder


def _own_temporary_folder() -> Path:
    # the same folder for each call of this user, and not writable by others
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"archetype-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if status.st_uid == user and not status.st_mode & 0o077 and folder.is_dir() and not folder.is_symlink():
            _check_writable(folder)
            return folder
    except OSError:
        pass  # another user's folder, or a file
    return Path(tempfile.mkdtemp(prefix="archetype-"))


def _check_writable(folder: Path) -> None:
    # by trying: mode bits are not reliable for every user and file system
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder):
        pass
