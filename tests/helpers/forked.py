"""Programs in processes of their own, forked from one that has loaded torch: each starts in milliseconds.

`run` and `start` ask that process, the server, from a test; the programs in `programs()` ask it from a shell.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, Any
from uuid import uuid4

import archetype
from tests.helpers.forked_process import Process

__all__ = ["Process"]  # for tests that hold one

ROOT = Path(__file__).parent.parent.parent
LOADED = (  # beside all of Archetype
    "matplotlib.backends.backend_agg", "matplotlib.figure", "numpy.ctypeslib", "torch", "torch._dynamo", "torch._refs",
    "uniplot", "yaml.cyaml",
)  # fmt: skip
PROGRAM = """#!{python} -IS
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.helpers.forked_process import Process
process = Process({address!r}, [{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ), (0, 1, 2))
signal.signal(signal.SIGTERM, lambda *_: process.kill(signal.SIGTERM))
sys.exit(process.wait() % 256)
"""


@cache
def server() -> Path:
    """The folder with the server's socket and its programs; the workers of a run share it, and it ends with the run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    # a socket's path may be no longer than 100 characters
    folder = Path(tempfile.gettempdir(), f"forked-{run or uuid4().hex}")
    address = folder / "socket"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # by another worker
        for _ in range(1200):
            if address.exists():
                return folder
            time.sleep(0.1)
        raise TimeoutError(f"another worker has not started the server in {folder}") from None
    for name in ("archetype", "python"):
        program = PROGRAM.format(python=sys.executable, root=str(ROOT), address=str(address), name=name)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "bound"))
        listener.listen(64)
        command = [sys.executable, "-m", "tests.helpers.forked", str(folder), str(listener.fileno())]
        running = subprocess.Popen(
            [*command, str(os.getppid() if run else os.getpid())],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # small models; other tests run on the other cores
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    running.returncode = 0  # nobody waits for its end
    return (folder / "bound").rename(address).parent


def programs() -> Path:
    """A folder for PATH: `archetype ...`, `python -m ...`, `python -c ...` and `python FILE`."""
    return server() / "bin"


def start(arguments: list[str], cwd: Path, environment: dict[str, str], output: IO[bytes]) -> "Process":
    """Start `archetype ...` or `python ...` without input, everything that it prints into one open file."""
    streams = (os.open(os.devnull, os.O_RDONLY), output.fileno(), output.fileno())
    try:
        return Process(str(server() / "socket"), arguments, str(cwd), environment, streams)
    finally:
        os.close(streams[0])


def run(
    arguments: list[str], environment: dict[str, str] | None = None, input: bytes = b"", cwd: Path = ROOT
) -> subprocess.CompletedProcess[Any]:
    """What `archetype ...` or `python ...` prints, in bytes, and its status."""
    with contextlib.ExitStack() as files:
        source, out, error = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        source.write(input)
        source.seek(0)
        streams = source.fileno(), out.fileno(), error.fileno()
        process = Process(str(server() / "socket"), arguments, str(cwd), os.environ | (environment or {}), streams)
        try:
            status = process.wait()
        finally:
            process.kill()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), error.read())


def serve(listener: socket.socket, owner: int) -> list[str] | None:
    """Fork a process for each request; what the forked process is to run, None in the server once its owner has ended.

    Args:
        listener: where requests arrive.
        owner: process id of the tests' first process.
    """
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, socket.socket] = {}
    while _runs(owner):
        ready = select.select([listener, ended], [], [], 1)[0]
        if listener in ready:
            client = listener.accept()[0]
            streams = socket.recv_fds(client, 1, 3)[1]
            with client.makefile() as sent:
                request = json.load(sent)
            if any("parity" in word or "transformers" in word for word in request[0]):  # not for all: it takes seconds
                import_module("transformers.models.llama.modeling_llama")
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for inherited in (listener, ended, wake, client, *clients.values()):
                    inherited.close()
                return become(*request, streams)
            for stream in streams:
                os.close(stream)
            client.sendall(f"{pid}\n".encode())
            clients[pid] = client
        if ended in ready:
            ended.recv(4096)
            with contextlib.suppress(ChildProcessError):
                while (child := os.waitpid(-1, os.WNOHANG))[0]:
                    with clients.pop(child[0]) as client, contextlib.suppress(BrokenPipeError):
                        client.sendall(f"{os.waitstatus_to_exitcode(child[1])}\n".encode())
    return None


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def become(arguments: list[str], cwd: str, environment: dict[str, str], streams: list[int]) -> list[str]:
    """Turn this process into one that was started with these; the server's own streams and paths are left."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 they live as long as the process
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONWARNINGS") == "error":
        import warnings

        warnings.simplefilter("error")
    sys.path[0] = ""
    return arguments


def execute(program: str, *arguments: str) -> None:
    """Run what `archetype ...` or `python ...` runs."""
    if program == "archetype":
        sys.argv = ["archetype", *arguments]
        from archetype.apps.cli.main import main

        main()
        return
    flag, *rest = arguments or ("-",)
    if flag == "-m":
        sys.argv, sys.path[0] = rest, str(Path.cwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif flag in ("-", "-c"):
        sys.argv = [flag, *rest[flag == "-c" :]]
        main_module = type(sys)("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(rest[0] if flag == "-c" else sys.stdin.read(), "<string>", "exec"), vars(main_module))
    else:
        sys.argv = [flag, *rest]
        runpy.run_path(flag, run_name="__main__")


def prepare() -> None:
    """Load and build once what every process would: modules, the classes of recipes and specifications, and fonts.

    And the machine's peaks are measured on little, no loss curves are drawn, which takes longer than most runs, files
    are not flushed to the disk, and no process takes apart what torch has registered, at its end.
    """
    modules = (module.name for module in walk_packages(archetype.__path__, "archetype."))
    for name in (*LOADED, *(name for name in modules if name not in ("archetype.__main__", "archetype.hf"))):
        import_module(name)
    from torch._dynamo.utils import dump_compile_times

    from archetype.estimate.report import cost_report
    from archetype.families import preset
    from archetype.runs import peaks
    from archetype.training import loop
    from archetype.training.plot import draw_curves, draw_in_terminal
    from archetype.training.recipe import Recipe

    peaks.SIDE, peaks.READ_BYTES = 64, 2**20
    os.fsync = lambda fd: None
    loop.draw_picture = lambda run, unit="token": run.loss_picture.touch()
    Recipe(spec=preset("llama-tiny").dump()).dump(full=True)
    cost_report(preset("llama-tiny"))
    curves = {"one": ([1.0, 2.0], [2.0, 1.0])}
    draw_in_terminal(curves, "title", 90)
    with tempfile.TemporaryDirectory() as folder:
        draw_curves(curves, Path(folder) / "loss.png", "title", "step")
    atexit.unregister(dump_compile_times)
    for at_end in weakref.finalize._registry:
        at_end.atexit = False
    gc.freeze()


def main(folder: str, listener: str, owner: str) -> None:
    """Serve; in a forked process run what was asked for, and end without taking apart all that was loaded."""
    prepare()
    request = serve(socket.socket(fileno=int(listener)), int(owner))
    if request is None:
        shutil.rmtree(folder)
        return
    status: Any = 0
    try:
        execute(*request)
    except SystemExit as leaving:
        status = leaving.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # as Python itself ends
        status = 120
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
