"""Process untrusted input in a child process with limits of time and memory.

Python cannot stop a thread, and neither a grammar compiler nor a string method checks the time. The child process ends
with its parent, and is restarted after it was killed. Windows and macOS cannot limit the memory of a process; only
the time limit applies there.
"""

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from importlib import import_module
from subprocess import PIPE
from typing import Any, BinaryIO

HEAD = struct.Struct("<q")  # length of each message in bytes
PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from archetype.confined.process import answer_requests
answer_requests(sys.argv[1], int(sys.argv[2]))
"""
BUSY = 10  # wall-clock limit as a multiple of the processor-time limit, for busy machines
LONGEST_ERROR = 1000  # characters of an error message


class ConfinedError(Exception):
    """The child process could not compute a result.

    Args:
        kind: name of the exception in the child process; "Killed" if it was killed; "Late" if the wall-clock limit
            passed, perhaps because of other programs.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Confined:
    """Child process that calls a function.

    Args:
        module: has the function `answer`, whose arguments and result are JSON.
        memory: limit in bytes.
    """

    def __init__(self, module: str, memory: int) -> None:
        self._module, self._memory = module, memory
        self._lock, self._owner = threading.Lock(), 0
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def __call__(self, *args: Any, seconds: float, max_bytes: int) -> Any:
        """Return the result of the function.

        Args:
            seconds: limit of CPU time.
            max_bytes: limit of the result's size, to which 16 times the size of the arguments is added.

        Raises:
            ConfinedError: the function failed or exceeded a limit.
        """
        try:
            request = json.dumps(args).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfinedError(type(error).__name__, str(error)) from None
        max_bytes += 16 * len(request)
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            is_late = threading.Event()

            def end() -> None:
                is_late.set()
                process.kill()

            timer = threading.Timer(BUSY * seconds + 1, end)
            timer.start()
            try:
                _write(process.stdin, json.dumps([seconds, max_bytes]).encode())
                _write(process.stdin, request)
                reply = _read(process.stdout, max_bytes)
            except OSError:
                reply = None
            finally:
                timer.cancel()
            if reply is None:
                raise self._ended(process, seconds, is_late.is_set())
        kind, value = json.loads(reply)
        if kind != "answer":
            raise ConfinedError(kind, value)
        return value

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.communicate()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._owner != os.getpid():  # after a fork, the child needs its own
            self._process.returncode = 0  # the parent waits for it
            self._process = None
        if self._process is None or self._process.poll() is not None:
            self.close()
            command = [sys.executable, "-c", PROGRAM, self._module, str(self._memory), *sys.path]
            self._process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL)
            self._owner = os.getpid()
        return self._process

    def _ended(self, process: "subprocess.Popen[bytes]", seconds: float, is_late: bool) -> ConfinedError:
        # why there was no reply; the next request starts another process
        process.kill()
        status = process.wait()
        self.close()
        if is_late or status == -getattr(signal, "SIGPROF", 0):
            return ConfinedError("Late" if is_late else "Killed", f"takes longer than {seconds:g} s")
        return ConfinedError("Killed", f"needs more than {self._memory >> 20} MiB, or nests too deeply")


def answer_requests(module: str, memory: int) -> None:
    """Serve requests in the child process until its input ends."""
    _limit(memory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the child, too: the parent handles it
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # printed text must not mix with replies
    while (limits := _read(requests)) is not None and (request := _read(requests)) is not None:
        seconds, max_bytes = json.loads(limits)
        try:
            answer = import_module(module).answer
            _allow(seconds)
            reply = json.dumps(["answer", answer(*json.loads(request))])
            if len(reply) > max_bytes:
                reply = json.dumps(["TooLong", f"has a result of more than {max_bytes >> 20} MiB"])
        except MemoryError:
            reply = json.dumps(["MemoryError", f"needs more than {memory >> 20} MiB"])
        except Exception as error:
            reply = json.dumps([type(error).__name__, str(error)[:LONGEST_ERROR]])
        _allow(0)
        _write(replies, reply.encode())


def _limit(memory: int) -> None:
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "darwin":  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _allow(seconds: float) -> None:
    # SIGPROF ends the process after this CPU time; 0 removes the limit
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _write(pipe: BinaryIO | Any, message: bytes) -> None:
    pipe.write(HEAD.pack(len(message)) + message)
    pipe.flush()


def _read(pipe: BinaryIO | Any, max_bytes: int | None = None) -> bytes | None:
    # None at the end of the input, or if the message is too long
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size or ((size := HEAD.unpack(head)[0]) > (size if max_bytes is None else max_bytes)):
        return None
    message: bytes = pipe.read(size)
    return message if len(message) == size else None
