"""A process that has imported what tests need of other libraries, and runs pytest in copies of itself.

Importing torch and transformers takes ten seconds; a copy of a process takes none. Run as a program, it reads a line of
JSON for each run and answers with one. Nothing of the checkout is imported before the copy is made.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from typing import Any, TextIO

LIBRARIES = (
    "torch", "numpy", "pydantic", "jaxtyping", "beartype", "hypothesis", "tokenizers", "safetensors.torch", "typer",
    "rich.progress", "jinja2", "yaml", "pytest", "gguf", "starlette.applications", "starlette.testclient", "uvicorn",
    "transformers.modeling_utils", "transformers.generation.utils", "transformers.tokenization_utils_base",
    "matplotlib.figure", "scipy.stats", "peft", "huggingface_hub", "torch.distributed.tensor",
)  # fmt: skip


def serve(requests: TextIO, answers: TextIO) -> None:
    """Run what each line says: arguments of pytest, the folder to run in, further environment, and a time limit."""
    for line in requests:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


def run(folder: str, arguments: list[str], environment: dict[str, str], timeout: float) -> dict[str, Any]:
    """Run pytest in a copy of this process; returns its exit code, None after the time limit, and what it printed."""
    with tempfile.TemporaryFile() as output:
        if not (process := os.fork()):
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            os.chdir(folder)
            os.environ |= environment
            sys.path.insert(0, folder)
            sys.exit(int(importlib.import_module("pytest").main(arguments)))
        code = _wait(process, timeout)
        output.seek(0)
        return {"code": code, "output": output.read().decode(errors="replace")}


def _wait(process: int, timeout: float) -> int | None:
    """The exit code of a process; after the time limit it is ended with all that it started."""
    end = time.monotonic() + timeout
    while not (done := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(done[1])


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        for name in LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    serve(sys.stdin, sys.stdout)
