"""What looking inside takes: `python -m benchmarks.inside MODEL [--tokens 512]`, the medians of five.

A plain pass over a text beside the server's answer to POST /api/inspect for it, the maps of all heads, one map, and
the lens; and the time between the tokens of a stream while texts are inspected, beside that of a stream alone.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import archetype

REPEAT, STREAMED = 5, 200


def median(work: Callable[[], Any]) -> float:
    """Seconds of some work."""
    times = []
    for _ in range(REPEAT + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def ask(port: int, path: str, body: Any = None) -> bytes:
    """The answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    data = reply.read()
    assert reply.status == 200, data
    return data


def gaps(port: int, ids: list[int]) -> list[float]:
    """Seconds between the chunks of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"prompt": ids[:16], "max_tokens": STREAMED, "temperature": 0, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply, times = connection.getresponse(), list[float]()
    while line := reply.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    lm = archetype.load(options.model)
    vocab_size = getattr(lm.spec, "vocab_size", 256)
    ids = [(31 * place + 7) % vocab_size for place in range(min(options.tokens, lm.spec.context_length))]
    with torch.no_grad():
        plain = median(lambda: lm.model(torch.tensor([ids])))
    command = [sys.executable, "-m", "archetype", "serve", options.model, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://" in line)
        port = int(re.search(r":(\d+)/v1", line)[1])  # type: ignore[index]
        inspected = median(lambda: ask(port, "/api/inspect", {"ids": ids}))
        id = json.loads(ask(port, "/api/inspect", {"ids": ids}))["id"]
        rows = {
            "plain pass": plain,
            f"inspect, {inspected / plain:.2f} of it": inspected,
            "maps of all heads": median(lambda: ask(port, f"/api/inspect/{id}/heads")),
            "one map": median(lambda: ask(port, f"/api/inspect/{id}/attention?layer=0&head=0&max=2048")),
            "lens, first": median(
                lambda: ask(port, f"/api/inspect/{json.loads(ask(port, '/api/inspect', {'ids': ids}))['id']}/lens")
            )
            - inspected,
        }
        alone = gaps(port, ids)
        stop = threading.Event()

        def inspect() -> None:
            while not stop.is_set():
                ask(port, "/api/inspect", {"ids": ids})

        thread = threading.Thread(target=inspect)
        thread.start()
        beside = gaps(port, ids)
        stop.set()
        thread.join()
        for name, times in (("alone", alone), ("while texts are inspected", beside)):
            rows[f"between two tokens of a stream, {name}, median"] = statistics.median(times)
            rows[f"between two tokens of a stream, {name}, longest"] = max(times)
        server.terminate()
    print(f"{len(ids)} tokens, {torch.get_num_threads()} threads")
    for name, seconds in rows.items():
        print(f"{name:72}{1e3 * seconds:10.1f} ms")


if __name__ == "__main__":
    main()
