"""What the server adds to its engine: `python -m benchmarks.serve [MODEL] [--streams 1 4 16]`.

The bare engine and the server take the same requests by turns, each in a process of its own. Printed: tokens a second
of both, the time to the first token, processor time for each streamed chunk, and /health while streams run.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import archetype
from archetype.generate import Engine
from archetype.loading import build_untrained
from archetype.tokenizers import train_tokenizer

PROMPT, NEW, REPEAT = 128, 128, 5


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def prompts(count: int, turn: int) -> list[list[int]]:
    """Different token ids each time, so that nothing is remembered."""
    return [[1 + (31 * turn + 7 * row + 3 * place) % 200 for place in range(PROMPT)] for row in range(count)]


def bare(engine: Engine, count: int, turn: int) -> tuple[float, float]:
    """Seconds to the first token, and tokens a second after it, of the engine alone."""
    started = time.perf_counter()
    options: dict[str, Any] = {"max_new_tokens": NEW, "temperature": 0.0, "ignore_eos": True}
    requests = [engine.submit(ids, **options) for ids in prompts(count, turn)]
    first = 0.0
    for event in engine.events():
        first = first or (time.perf_counter() - started)
        assert event.request in requests
    return first, count * NEW / (time.perf_counter() - started)


def stream(port: int, ids: list[int], times: list[float]) -> None:
    """Read one stream; the time of each of its chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {
        "prompt": ids,
        "max_tokens": NEW,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    while line := reply.readline():
        if line.startswith(b'data: {"id"'):
            times.append(time.perf_counter())
    connection.close()


def served(port: int, count: int, turn: int) -> tuple[float, float]:
    """The same of the server."""
    all_times: list[list[float]] = [[] for _ in range(count)]
    threads = [
        threading.Thread(target=stream, args=(port, ids, times))
        for ids, times in zip(prompts(count, turn), all_times, strict=True)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, last = min(times[0] for times in all_times), max(times[-1] for times in all_times)
    return first - started, count * NEW / (last - started)


def health(port: int, stop: threading.Event, times: list[float]) -> None:
    """Ask again and again whether the server is well."""
    while not stop.is_set():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        started = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        times.append(time.perf_counter() - started)
        connection.close()
        time.sleep(0.02)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's first thread, in which the event loop runs."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder (default: llama-tiny with random weights)")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, default=REPEAT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.model or str(Path(folder) / "tiny")
        if arguments.model is None:
            spec = Path(folder) / "spec.yaml"
            spec.write_text(archetype.spec.to_yaml(archetype.spec.assign(archetype.load_spec("llama-tiny"), [
                "vocab_size=257", "context_length=512", "num_layers=4",
            ])))  # fmt: skip
            lm = build_untrained(spec)
            lm.tokenizer = train_tokenizer("bytes", [], None)
            lm.save(place)
        measure(place, arguments.streams, arguments.repeat)


def measure(place: str, counts: list[int], repeat: int) -> None:
    """Print the rows for one model."""
    engine = Engine(archetype.load(place), slots=max(counts), prefix_bytes=0)
    command = [sys.executable, "-m", "archetype", "serve", place, "--port", "0", "--slots", str(max(counts)),
               "--prefix-cache", "0"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = int(process.stderr.readline().rpartition(":")[2].partition("/")[0])
        bare(engine, 1, 0)
        served(port, 1, 0)
        print(
            "streams  TTFT ms: engine  server  added   tok/s: engine  server  ratio   CPU us a chunk   /health p99 ms"
        )
        for count in counts:
            ours, theirs, well, stop = [], [], list[float](), threading.Event()
            asking = threading.Thread(target=health, args=(port, stop, well))
            spent = 0.0
            for turn in range(1, repeat + 1):
                ours.append(bare(engine, count, turn))
                before = cpu_seconds(process.pid)
                theirs.append(served(port, count, turn))
                spent += cpu_seconds(process.pid) - before
            asking.start()
            served(port, count, 0)
            stop.set()
            asking.join()
            first, speed = (statistics.median(column) for column in zip(*ours, strict=True))
            first_served, speed_served = (statistics.median(column) for column in zip(*theirs, strict=True))
            chunk = 1e6 * spent / (repeat * count * NEW)
            print(
                f"{count:7d}  {1e3 * first:15.1f} {1e3 * first_served:7.1f} {1e3 * (first_served - first):6.1f}   "
                f"{speed:13.0f} {speed_served:7.0f} {speed_served / speed:6.2f}   {chunk:14.0f}   "
                f"{1e3 * percentile(well, 0.99):14.1f}",
                flush=True,
            )
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
