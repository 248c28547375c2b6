"""Time of looking inside a model: `python -m benchmarks.inside MODEL [--tokens 512]`, medians, each printed at once.

A plain pass over a text beside the server's answer to POST /api/inspect for it, the comparison of both passes, the maps
of all heads, one map, and the lens; and the time between the tokens of a stream while texts are inspected, beside that
of a stream alone.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import archetype
from benchmarks.serve import start


def median(work: Callable[[], Any], repeat: int) -> float:
    """Seconds of some work, after it was done once; where it is not repeated, of that one time."""
    times = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


def ask(port: int, path: str, body: Any = None) -> bytes:
    """The answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    assert reply.status == 200, data
    return data


def gaps(port: int, ids: list[int], count: int) -> list[float]:
    """Seconds between the chunks of a stream of so many tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"prompt": ids[:16], "max_tokens": count, "temperature": 0, "stream": True, "ignore_eos": True}
    body["return_token_ids"] = True  # so that a model without a tokenizer has chunks too
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply, times = connection.getresponse(), list[float]()
    while line := reply.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def row(name: str, seconds: float, target: str = "") -> None:
    """Print a row of the table."""
    print(f"{name:60}{1e3 * seconds:10.1f} ms   {target}", flush=True)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--streamed", type=int, default=64, help="tokens of the stream beside it")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    lm = archetype.load(options.model)
    vocab_size = getattr(lm.spec, "vocab_size", 256)
    ids = [(31 * place + 7) % vocab_size for place in range(min(options.tokens, lm.spec.context_length))]
    print(f"{options.model}: {len(ids)} tokens, {torch.get_num_threads()} threads", flush=True)
    with torch.inference_mode():
        plain = median(lambda: lm.model(torch.tensor([ids])), options.repeat)
    row("plain pass", plain)
    process, port = start(options.model)
    try:
        measure(port, ids, plain, options.repeat, options.streamed)
    finally:
        process.terminate()
        process.wait()


def measure(port: int, ids: list[int], plain: float, repeat: int, streamed: int) -> None:
    """Print the rows of the server."""
    answers: list[Any] = []

    def inspect() -> None:
        answers.append(json.loads(ask(port, "/api/inspect", {"ids": ids})))

    inspected = median(inspect, repeat)
    target = f"2 plain passes + 150 ms: {2e3 * plain + 150:.0f} ms"
    row(f"inspect, {inspected / plain:.2f} plain passes", inspected, target)
    last, layers = answers[-1]["id"], answers[-1]["attention"]
    row("compared with a plain pass", median(lambda: ask(port, f"/api/inspect/{last}/exact"), 0))
    if layers:
        path = f"/api/inspect/{last}/attention?layer={layers[-1]['layer']}&head=0&max=2048"
        row("maps of all heads", median(lambda: ask(port, f"/api/inspect/{last}/heads"), repeat), "150 ms")
        row("one map", median(lambda: ask(port, path), repeat), "60 ms")
    if "lens" in answers[-1]["views"]:
        of_lens = f"/api/inspect/{last}/lens"
        row("lens, computed once", median(lambda: ask(port, of_lens), 0))
        row("lens, again", median(lambda: ask(port, of_lens), repeat))
    alone, stop = gaps(port, ids, streamed), threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            inspect()

    thread = threading.Thread(target=go_on)
    thread.start()
    beside = gaps(port, ids, streamed)
    stop.set()
    thread.join()
    for name, times in (("alone", alone), ("while texts are inspected", beside)):
        row(f"between two tokens of a stream {name}, median", statistics.median(times))
        row(f"between two tokens of a stream {name}, longest", max(times))


if __name__ == "__main__":
    main()
