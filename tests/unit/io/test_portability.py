"""What only POSIX systems have is imported and used with a fallback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archetype.io import atomic
from archetype.models import build

ROOT = Path(__file__).parents[3]
# As on Windows: no module of the package may need these in order to be imported.
WITHOUT_POSIX = """
import builtins, importlib, pkgutil, sys
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
plain_import = builtins.__import__

def without_posix(name, globals=None, locals=None, fromlist=(), level=0):
    if name.partition(".")[0] in POSIX and (globals or {}).get("__name__", "").startswith("archetype"):
        raise ModuleNotFoundError(name)
    return plain_import(name, globals, locals, fromlist, level)

builtins.__import__ = without_posix
"""
IMPORT_ALL = """
import archetype
names = [module.name for module in pkgutil.walk_packages(archetype.__path__, "archetype.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


def test_every_module_is_imported_without_posix_modules() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX + IMPORT_ALL], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


def test_a_posix_module_that_is_needed_is_seen() -> None:
    """The control: an import without a fallback would fail."""
    code = WITHOUT_POSIX + "exec('import resource', {'__name__': 'archetype.spec'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "ModuleNotFoundError: resource" in done.stderr


def test_folders_are_not_flushed_where_that_cannot_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, int] = {}
    plain_open = os.open

    def as_on_windows(path: Path, flag: int) -> int:
        assert not path.is_dir()
        flags[path.name] = flag
        return plain_open(path, flag)

    monkeypatch.setattr(atomic, "WINDOWS", True)
    with atomic.new_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_bytes(b"a")
        monkeypatch.setattr(os, "open", as_on_windows)
    assert (tmp_path / "folder" / "a").read_bytes() == b"a"
    assert flags == {"a": os.O_RDWR}


def test_a_model_is_built_where_the_memory_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from archetype.families.llama import llama

    spec = llama(num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=12, vocab_size=9, context_length=8)
    monkeypatch.delattr(os, "sysconf")
    assert build(spec).state_dict()
