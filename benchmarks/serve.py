"""Time and throughput of the server beside its engine: `python -m benchmarks.serve [MODEL] [--peer NAME=URL ...]`.

The bare engine, the server and its peers take the same requests by turns, each in a process of its own; the engine's
has the environment that the command line gives the server's. Every row is printed as soon as it is measured, with the
target beside; a row takes `--seconds` at most, but each measures once.

Peers are other servers of OpenAI's API that run with the same weights, such as

    archetype export MODEL --format gguf --to gguf
    python -m llama_cpp.server --model gguf/model.gguf --n_ctx 1024 --verbose False --port 8001
    transformers serve MODEL --continuous-batching --device cpu --port 8002  # needs accelerate
"""

import argparse
import functools
import http.client
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import archetype.apps.cli  # isort: skip  # sets how threads wait, which torch reads when it is loaded
import torch

import archetype
from archetype.api.loading import build_untrained
from archetype.generate import Engine
from archetype.tokenizers import train_tokenizer

PROMPT, NEW = 128, 128  # tokens
FIRSTS = 40  # requests by which the time to the first token is measured


@dataclass
class Answers:
    """What some requests, all begun at once, were answered with.

    Attributes:
        firsts: seconds until the first token of each.
        tokens: of all.
        seconds: until the last one.
    """

    firsts: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass
class Server:
    """A server of OpenAI's API.

    Attributes:
        port: on this machine.
        model: by which requests name its model.
        options: of a request, beside those that all servers know.
        pid: of its process, where we started it.
    """

    port: int
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    pid: int = 0

    def begin(self, prompt: str | list[int], new: int) -> socket.socket:
        """Ask for a stream of so many tokens."""
        options = {"model": self.model, "prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True}
        body = json.dumps(options | self.options).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def stream(self, prompts: list[Any], new: int) -> Answers:
        """Read streams, all at once, in one thread that does as little as it can."""
        started, answers, selector = time.perf_counter(), Answers(), selectors.DefaultSelector()
        replies = [bytearray() for _ in prompts]
        for prompt, reply in zip(prompts, replies, strict=True):
            selector.register(self.begin(prompt, new), selectors.EVENT_READ, reply)
        while selector.get_map():
            for key, _ in selector.select():
                data, now = key.fileobj.recv(2**16), time.perf_counter() - started  # type: ignore[union-attr]
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                elif b"data: {" in data:
                    answers.seconds = now
                    if b"data: {" not in key.data:
                        answers.firsts.append(now)
                key.data.extend(data)
        for reply in replies:
            assert reply.startswith(b"HTTP/1.1 200"), bytes(reply[:2000])
            ended = b'"length"' in reply  # then it had all its tokens, however many chunks they came in
            answers.tokens += new if ended else reply.count(b"data: {")
        return answers

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds until a path is answered, and the answer."""
        connection, started = http.client.HTTPConnection("127.0.0.1", self.port), time.perf_counter()
        connection.request("GET", path, headers={"connection": "close"})
        data = connection.getresponse().read()
        connection.close()
        return time.perf_counter() - started, data

    def loop_seconds(self) -> float:
        """Processor time of the process's first thread, in which the event loop runs."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9


def bare(engine: Engine, prompts: list[Any], new: int) -> Answers:
    """The same of the engine alone."""
    started, answers, begun = time.perf_counter(), Answers(), set[Any]()
    for prompt in prompts:
        engine.submit(prompt, max_new_tokens=new, temperature=0.0, ignore_eos=True)
    for event in engine.events():
        answers.tokens, answers.seconds = answers.tokens + 1, time.perf_counter() - started
        if event.request not in begun:
            begun.add(event.request)
            answers.firsts.append(answers.seconds)
    return answers


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, columns: list[str], target: str = "") -> None:
    """Print a row: what is measured, the target, and a column for each of engine, server and peers."""
    print(f"{name:38}{target:>16}" + "".join(f"{column:>18}" for column in columns), flush=True)


class Prompts:
    """Different prompts each time, so that nothing is remembered; token ids, or texts of about as many tokens.

    Args:
        tokenizer: of the model; None for token ids.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self._turn = tokenizer, 0

    def __call__(self, count: int) -> list[Any]:
        """So many prompts."""
        self._turn += 1
        ids = [[1 + (31 * self._turn + 7 * n + 3 * place) % 200 for place in range(PROMPT)] for n in range(count)]
        return ids if self.tokenizer is None else [self.tokenizer.decode(row)[:400] for row in ids]


def first_tokens(measured: dict[str, Callable[[list[Any], int], Answers]], prompts: Prompts, seconds: float) -> None:
    """Rows for the time to the first token of a request alone."""
    times: dict[str, list[float]] = {name: [] for name in measured}
    until = time.monotonic() + seconds
    while len(times["engine"]) < FIRSTS and (not times["engine"] or time.monotonic() < until):
        for name, ask in measured.items():
            times[name] += ask(prompts(1), 4).firsts
    for label, target, of in (
        ("median", "engine + 5 ms", statistics.median),
        ("p95", "engine + 10 ms", functools.partial(percentile, share=0.95)),
    ):
        row(f"first token, {label}", [f"{1e3 * of(column):.1f} ms" for column in times.values()], target)
    added = [1e3 * (served - alone) for alone, served in zip(times["engine"], times["server"], strict=True)]
    row(f"  added, median of {len(added)}", ["", f"{statistics.median(added):+.1f} ms"], "+5 ms")


def rates(
    measured: dict[str, Callable[[list[Any], int], Answers]],
    prompts: Prompts,
    server: Server,
    count: int,
    repeat: int,
    seconds: float,
) -> None:
    """Rows for some streams at once."""
    results: dict[str, list[Answers]] = {name: [] for name in measured}
    until, spent = time.monotonic() + seconds, 0.0
    while len(results["engine"]) < repeat and (not results["engine"] or time.monotonic() < until):
        for name, ask in measured.items():
            before = server.loop_seconds()
            results[name].append(ask(prompts(count), NEW))
            spent += server.loop_seconds() - before if name == "server" else 0.0
    speed = {name: statistics.median(one.rate for one in answers) for name, answers in results.items()}
    firsts = {name: [first for one in answers for first in one.firsts] for name, answers in results.items()}
    streams = f"{count} stream{'s' * (count > 1)}"
    row(f"{streams}: tokens/s, median of {len(results['engine'])}", [f"{value:.1f}" for value in speed.values()])
    share = "0.95" if count == 1 else "0.90"
    row("  of the engine's", ["", *(f"{value / speed['engine']:.3f}" for value in list(speed.values())[1:])], share)
    row("  first token, median", [f"{1e3 * statistics.median(values):.1f} ms" for values in firsts.values()])
    row("  first token, p95", [f"{1e3 * percentile(values, 0.95):.1f} ms" for values in firsts.values()])
    chunks = sum(one.tokens for one in results["server"])
    row("  processor time a chunk", ["", f"{1e6 * spent / chunks:.0f} us"], "150 us")


def health(server: Server, prompts: Prompts, count: int) -> None:
    """Rows for small requests while streams run, and alone."""
    times, stop = list[float](), threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            times.append(server.get("/health")[0])

    thread = threading.Thread(target=ask)
    thread.start()
    server.stream(prompts(count), NEW)
    stop.set()
    thread.join()
    models = [server.get("/v1/models")[0] for _ in range(200)]
    for name, values, target in ((f"/health under {count} streams", times, 100), ("/v1/models alone", models, 5)):
        row(f"{name}, p99 of {len(values)}", ["", f"{1e3 * percentile(values, 0.99):.1f} ms"], f"{target} ms")


def cancel(server: Server, prompts: Prompts) -> None:
    """A row for the time until a client that left takes nothing any more."""

    def running() -> bool:
        lines = server.get("/metrics")[1].decode().splitlines()
        return any(line.startswith("archetype_requests_running") and not line.endswith(" 0.0") for line in lines)

    times = []
    for _ in range(5):
        connection = server.begin(prompts(1)[0], 2 * NEW)
        while b"data: {" not in connection.recv(2**16):
            pass
        connection.close()
        started = time.perf_counter()
        while running():
            pass
        times.append(time.perf_counter() - started)
    row("cancelled after a client leaves", ["", f"{1e3 * statistics.median(times):.1f} ms"], "1 step + 100 ms")


def start(*arguments: str, **variables: str) -> tuple[subprocess.Popen[str], int]:
    """A server's process with further variables in its environment, and its port."""
    command = [sys.executable, "-m", "archetype", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | variables)
    assert process.stderr is not None
    line = next((line for line in process.stderr if " at http://" in line), "")
    assert line, "the server did not start"
    return process, int(line.rpartition(":")[2].partition("/")[0])


def without_model() -> None:
    """A row for the time until a server without a model answers."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        process, port = start()
        Server(port, "").get("/health")
        times.append(time.perf_counter() - started)
        process.terminate()
        process.wait()
    row("started without a model", ["", f"{statistics.median(times):.2f} s"], "0.6 s")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder (default: llama-tiny with random weights)")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, default=5, help="times that each row is measured")
    parser.add_argument("--seconds", type=float, default=60.0, help="for a row; then it is measured no more")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="a server beside, or several")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.model or tiny(Path(folder))
        measure(place, arguments.streams, arguments.repeat, arguments.seconds, arguments.peer)


def tiny(folder: Path, context_length: int = 512, num_layers: int = 4) -> str:
    """A small model with a tokenizer."""
    spec = folder / "spec.yaml"
    changes = ["vocab_size=257", f"context_length={context_length}", f"num_layers={num_layers}"]
    spec.write_text(archetype.spec.to_yaml(archetype.spec.assign(archetype.load_spec("llama-tiny"), changes)))
    lm = build_untrained(spec)
    lm.tokenizer = train_tokenizer("bytes", [], None)
    lm.save(folder / "tiny")
    return str(folder / "tiny")


def measure(place: str, counts: list[int], repeat: int, seconds: float, peers: list[str]) -> None:
    """Print the rows for one model."""
    lm = archetype.load(place)
    engine = Engine(lm, slots=max(counts), prefix_bytes=0)
    process, port = start(place, "--slots", str(max(counts)), "--prefix-cache", "0")
    try:
        server = Server(port, Path(place).resolve().name, {"ignore_eos": True, "return_token_ids": True}, process.pid)
        urls = dict(one.split("=", 1) for one in peers)
        others = {name: Server(urlsplit(url).port or 80, place) for name, url in urls.items()}
        prompts = Prompts(lm.tokenizer if others else None)
        measured = {"engine": functools.partial(bare, engine), "server": server.stream}
        measured |= {name: peer.stream for name, peer in others.items()}
        cores = len(os.sched_getaffinity(0))
        print(f"{place}: {PROMPT} + {NEW} tokens, {torch.get_num_threads()} threads on {cores} cores")
        row("", list(measured), "target")
        for ask in measured.values():
            ask(prompts(1), 8)
        first_tokens(measured, prompts, seconds)
        for count in counts:
            rates(measured, prompts, server, count, repeat, seconds)
        health(server, prompts, max(counts))
        cancel(server, prompts)
    finally:
        process.terminate()
        process.wait()
    without_model()


if __name__ == "__main__":
    main()
