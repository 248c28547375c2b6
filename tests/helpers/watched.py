"""Runs the command line on many folders in one process, and tells what each did: a program, for a process of its own.

    python -m tests.helpers.watched CASES.json

CASES.json maps a name to [folder, arguments]; what comes out maps it to an exit status, standard error, seconds, and
what was touched that a model folder must not touch.
"""

import contextlib
import io
import json
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

FORBIDDEN = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "socket.connect",
    "socket.getaddrinfo", "socket.bind", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "shutil.rmtree",
    "pickle.find_class", "ctypes.dlopen", "webbrowser.open",
}  # fmt: skip
# the process's own symbols, and those of the C library, which it has loaded already
OF_ITSELF = (("ctypes.dlopen", (None,)), ("ctypes.dlopen", ("libc.so.6",)))
OWN = [
    Path(path).resolve() for path in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path) if path
]
SYSTEM = [Path(path) for path in ("/proc", "/sys", "/dev", "/usr/lib", "/usr/local/lib", "/usr/share")]


class Watch:
    """Notes what is touched while a folder is being read."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.touched: list[str] = []
        # folders that the process made for itself: of a small model that is compared, and of what that found
        caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
        self.temporary = [Path(os.path.realpath(caches / "archetype"))]

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "tempfile.mkdtemp":
            self.temporary.append(Path(os.path.realpath(arguments[0])))
        if event in FORBIDDEN | {"open"} and arguments and isinstance(arguments[0], str | bytes | os.PathLike):
            start = ""
            if event in ("os.remove", "os.rmdir") and arguments[1] >= 0:  # a name below an open folder
                start = str(Path(f"/proc/self/fd/{arguments[1]}").readlink())
            path = Path(os.path.realpath(Path(start, os.fsdecode(arguments[0]))))
            if any(path.is_relative_to(folder) for folder in self.temporary):
                return
        if event in FORBIDDEN and (event, arguments) not in OF_ITSELF:
            self.touched.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.path.realpath(os.fsdecode(arguments[0])))
            if not any(path.is_relative_to(root) for root in (self.folder, *OWN, *SYSTEM)):
                self.touched.append(f"open {path}")
        elif event == "exec" and Path(getattr(arguments[0], "co_filename", "")).is_relative_to(self.folder):
            self.touched.append(f"exec {arguments[0].co_filename}")


def judge(watch: Watch, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """One command, and what it did."""
    from archetype.apps.cli.main import main

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    out, error, status = io.StringIO(), io.StringIO(), 0
    sys.argv, started = ["archetype", *arguments], time.monotonic()
    watch.folder, watch.touched = folder.resolve(), []
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            main()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as failure:  # what the user would see as a trace
        status, error = 1, io.StringIO(f"{type(failure).__name__}: {failure}")
    watch.folder = None
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {
        "status": status, "error": error.getvalue(), "seconds": time.monotonic() - started,
        "touched": watch.touched, "changed": before != after,
    }  # fmt: skip


def run(cases: dict[str, tuple[str, list[str]]]) -> dict[str, dict[str, Any]]:
    """All of them, after one sound folder, so that everything is imported that reading one imports."""
    watch = Watch()
    sys.dont_write_bytecode = True  # a module that is imported for the first time would be renamed into its cache
    sys.addaudithook(watch)
    return {name: judge(watch, Path(folder), arguments) for name, (folder, arguments) in cases.items()}


if __name__ == "__main__":
    results = run(json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps(results))
