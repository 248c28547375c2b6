"""The way of a call through the package: frames, functions and files, from the entry to the attention kernel.

python -m benchmarks.walks [generate | cost | train | request] ...
"""

import http.client
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import archetype.apps.cli  # isort: skip  # sets how threads wait, which torch reads when it is loaded
import archetype

PACKAGE = str(Path(archetype.__file__).parent) + os.sep
KERNELS = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "softmax")
ATTENDS = re.compile(r"^(parts/attention/.*attend|native/fused.py:attention)", re.M)  # not the rotation before it
TEXT = "a short text for a walk, which is long enough to learn from. " * 60
MODEL = "llama-tiny"


class Walk:
    """Calls of the package while `is_on`, in all threads that are started later."""

    def __init__(self) -> None:
        self.is_on, self.calls = False, 0
        self.functions: set[tuple[str, str]] = set()
        self.deepest: list[str] = []
        self.to_kernel: list[str] = []
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.is_on:
            return
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls += 1
            file = frame.f_code.co_filename.removeprefix(PACKAGE)
            self.functions.add((file, frame.f_code.co_qualname))
            stack = _stack(frame)
            self.deepest = max(self.deepest, stack, key=len)
            is_kernel = file == "native/library.py" and frame.f_code.co_name == "run"
        else:
            is_kernel = event == "c_call" and getattr(argument, "__name__", "") in KERNELS
        if is_kernel and not self.to_kernel and ATTENDS.search("\n".join(_stack(frame))):
            self.to_kernel = _stack(frame)

    def print(self, name: str) -> None:
        """Print a row of the table."""
        files = {file for file, _ in self.functions}
        kernel, through = len(self.to_kernel) or "", len({line.split(":")[0] for line in self.to_kernel}) or ""
        cells = name, kernel, through, len(self.deepest), self.calls, len(self.functions), len(files)
        print("|", " | ".join(map(str, cells)), "|")
        if os.environ.get("WALK_PATH"):
            print("\n".join(self.to_kernel or self.deepest), file=sys.stderr)


def _stack(frame: FrameType | None) -> list[str]:
    """The package's frames above and at one, from the entry on: file:function."""
    lines = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            lines.append(f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return lines[::-1]


def walked(name: str, work: Callable[[], object]) -> None:
    """Trace a call after it ran once, so that nothing is imported."""
    work()
    walk = Walk()
    walk.is_on = True
    work()
    walk.is_on = False
    walk.print(name)


def generate(folder: Path) -> None:
    model = archetype.load(str(_trained(folder)))
    walked("`generate`, 4 tokens", lambda: model.generate("a short text", max_new_tokens=4))


def cost(folder: Path) -> None:
    walked("`cost llama-2-7b`", lambda: str(archetype.cost_report("llama-2-7b")))


def train(folder: Path) -> None:
    """A step more of the same run, beside one: the difference is a step."""
    runs = iter(range(9))

    def trained(steps: int) -> None:
        _train(folder, f"run-{next(runs)}", steps)

    trained(2)
    walk = Walk()
    walk.is_on = True
    trained(2)
    walk.is_on = False
    shorter = walk.calls
    walk.is_on = True
    trained(3)
    walk.is_on = False
    walk.calls = walk.calls - 2 * shorter
    walk.print("a training step (functions and files: of a run)")


def request(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run, walk = _trained(folder), Walk()
    threading.Thread(target=_ask, args=(walk, port), daemon=True).start()
    sys.argv = ["archetype", "serve", str(run), "--port", str(port)]
    from archetype.apps.cli.main import main

    main()


def _ask(walk: Walk, port: int) -> None:
    for _ in range(300):
        try:
            _post(port)
            break
        except OSError:
            time.sleep(0.2)
    walk.is_on = True
    status = _post(port)
    walk.is_on = False
    walk.print(f"a served request, 4 tokens (status {status})")
    sys.stdout.flush()
    os._exit(0)


def _post(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"model": "run", "prompt": "a short text", "max_tokens": 4})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _trained(folder: Path) -> Path:
    _train(folder, "run", 2)
    return folder / "run"


def _train(folder: Path, name: str, steps: int) -> None:
    (folder / "text.txt").write_text(TEXT)
    sizes = {"tokenizer": "bytes", "batch_size": 2, "sequence_length": 16}
    archetype.train(folder / name, folder / "text.txt", MODEL, steps=steps, **sizes)  # type: ignore[arg-type]


WALKS = {walk.__name__: walk for walk in (generate, cost, train, request)}


def main() -> None:
    """Print a row for each walk that the command line names."""
    for name in sys.argv[1:] or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            WALKS[name](Path(folder))


if __name__ == "__main__":
    main()
