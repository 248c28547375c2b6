"""Requests that are made to harm: `python -m benchmarks.attack [FILE] [--parallel 4] [--memory GiB] [--only TEXT]`.

FILE is a Python file with a function `cases` that gives a name, a path and a body of each (absent: this one). Each
meets a fresh server that may have so much address space, while another client asks for five tokens again and again. A
row says how the request was answered and after how long, the memory of the process at its peak and a second later above
what it had before, the longest that the other client waited, and how long the process took to end at SIGTERM.
"""

import argparse
import http.client
import json
import re
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archetype import LanguageModel, load_spec
from archetype.models.build import build
from archetype.spec import assign
from archetype.tokenizers import train_tokenizer

MODELS = {  # by the path of a request: a preset of which one is made, and what is changed in it
    "/v1/classify": ("vit-tiny", []),
    "/api/fill": ("bert-tiny", ["vocab_size=257", "context_length=1024"]),
}
OTHERS = ("llama-tiny", ["vocab_size=257", "context_length=2048"])
SHORT = {"prompt": [5], "max_tokens": 5, "model": "short"}
STARTED = re.compile(r"API at http://127\.0\.0\.1:(\d+)/")


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Requests that pass the first checks, and take much later."""
    completions, many = "/v1/completions", {"prompt": [1] * 10, "n": 16, "max_tokens": 1500, "ignore_eos": True}
    rows = "\n".join(f'r{n}: "a" "b" r{n} | "a" "c" "{n}"' for n in range(200))
    start = f"start: ({'|'.join(f'r{n}' for n in range(200))})+"
    yield "an ambiguous grammar, n 16", completions, many | {"guided_grammar": 'start: start start | "a"'}
    yield "rows of 800 items, n 16", completions, many | {"guided_grammar": f"{start}\n{rows}"}
    patterns = {f"^[a-z]{{1,{n % 40 + 2}}}[0-9]{{3}}x{n}$": {"type": "string"} for n in range(300)}
    yield "300 patterns of properties", completions, SHORT | {"guided_json": {"patternProperties": patterns}}
    yield "128 continuations, 4 log-probabilities", completions, many | {"n": 128, "max_tokens": 200, "logprobs": 4}
    yield "2,000 texts to embed", "/v1/embeddings", {"input": ["a " * 100] * 2000, "encoding_format": "base64"}
    yield "a look inside 2,000 tokens", "/api/inspect", {"text": "a" * 2000}


@dataclass
class Server:
    """A process that serves.

    Attributes:
        process: it.
        port: where it listens.
    """

    process: subprocess.Popen[str]
    port: int

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Send a request; its status and answer, or 0 and why there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            return 0, type(error).__name__.encode()
        finally:
            connection.close()

    def memory(self, field: str) -> int:
        """MiB of the process, as the system counts them: VmRSS now, VmHWM at most; 0 where it has ended."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(match[1]) >> 10 if match else 0


@contextmanager
def serving(folders: list[str], gib: float) -> Iterator[Server]:
    """A fresh server that may use so much memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)

    command = [sys.executable, "-m", "archetype", "serve", *folders, "--port", "0", "--grace", "5"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    try:
        assert process.stderr is not None
        match = next(filter(None, map(STARTED.search, process.stderr)), None)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        if match is None:
            raise SystemExit("the server did not start")
        yield Server(process, int(match[1]))
    finally:
        process.kill()
        process.wait()


def row(server: Server, path: str, body: Any, parallel: int) -> list[str]:
    """Send one request, or several at once, and measure."""
    server.post("/v1/completions", SHORT)
    before, waits, answers = server.memory("VmRSS"), [0.0], list[tuple[int, bytes]]()
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            started = time.perf_counter()
            status, _ = server.post("/v1/completions", SHORT)
            waits.append(time.perf_counter() - started if status == 200 else float("inf"))
            over.wait(0.05)

    other = threading.Thread(target=ask)
    other.start()
    started = time.perf_counter()
    clients = [threading.Thread(target=lambda: answers.append(server.post(path, body))) for _ in range(parallel)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = time.perf_counter() - started
    over.set()
    other.join()
    time.sleep(1)
    peak, after = server.memory("VmHWM") - before, server.memory("VmRSS") - before
    stopped = time.perf_counter()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait()
    statuses = "/".join(sorted({str(status) for status, _ in answers}))
    return [
        statuses, f"{seconds:.1f}", f"{peak:+,}", f"{after:+,}", f"{max(waits):.2f}",
        f"{time.perf_counter() - stopped:.1f}" if code == 0 else f"ended with {code}",
        min(said(answer) for _, answer in answers),
    ]  # fmt: skip


def said(answer: bytes) -> str:
    """What an error says, or how long an answer is."""
    try:
        return str(json.loads(answer)["error"]["message"])[:90]
    except (ValueError, KeyError, TypeError):
        return f"{len(answer):,} bytes"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=Path(__file__))
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--memory", type=float, default=4.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = ("request", "status", "s", "peak MiB", "after", "other s", "SIGTERM s", "answer")
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        saved = {path: made_of(Path(folder) / str(number), *MODELS[path]) for number, path in enumerate(MODELS)}
        short = made_of(Path(folder) / "short", *OTHERS)
        for name, path, body in runpy.run_path(str(options.file))["cases"]():
            if options.only not in name:
                continue
            with serving(
                [f"short={short}", *([f"attacked={saved[path]}"] if path in saved else [])], options.memory
            ) as server:
                sent = body | ({"model": "attacked"} if path in saved else {})
                print(f"| {name} | " + " | ".join(row(server, path, sent, options.parallel)) + " |", flush=True)


def made_of(folder: Path, preset: str, changes: list[str]) -> Path:
    """A model with random weights."""
    spec = assign(load_spec(preset), changes)
    tokenizer = None if spec.reads_images else train_tokenizer("bytes", [], None)
    LanguageModel(spec, build(spec).eval(), tokenizer).save(folder)
    return folder


if __name__ == "__main__":
    main()
