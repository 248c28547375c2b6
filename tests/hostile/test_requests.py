"""Requests that are made to harm: an answer or one clear refusal, and nobody else notices."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archetype.apps.serve.limits import Limits
from archetype.generate import grammar
from tests.helpers.hostile_requests import Case, cases
from tests.helpers.serving import Reply, Served, serving
from tests.integration.test_serve import models, no_network

__all__ = ["no_network"]  # the fixture, for this file too

SHORT = {"prompt": [5], "max_tokens": 5, "temperature": 0}
REFUSALS = (400, 404, 408, 413, 429, 503)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    known = models()
    names = {"llama": "llama", "bert": "bert", "classes": "classes", "vit": "vit", "transformer": "pairs"}
    with serving({new: known[old] for old, new in names.items()}, limits=Limits(seconds=20)) as served:
        for name in names.values():  # all are loaded
            served.call("/tokenize", {"model": name, "prompt": "a"})
        yield served


def memory(field: str = "VmRSS") -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


@contextmanager
def another_client(server: Served) -> Iterator[list[float]]:
    """The waits of a client that asks for five tokens again and again."""
    waits, over = [0.0], threading.Event()

    def ask() -> None:
        while not over.is_set():
            started = time.perf_counter()
            assert server.call("/v1/completions", SHORT).status == 200
            waits.append(time.perf_counter() - started)
            over.wait(0.05)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def check(reply: Reply, case: Case) -> None:
    """An answer, or one clear refusal; a stream may end with an error."""
    name, _, body = case
    if reply.status != 200:
        assert reply.status in REFUSALS, (name, reply.body[:300])
        message = reply.error["message"]
        assert message and "\n" not in message and "Traceback" not in message, (name, message)
    elif not body.get("stream"):
        json.loads(reply.body)


def test_harmful_requests_harm_nobody(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of each kind, drawn: status, memory, and the server goes on."""
    monkeypatch.setattr(grammar, "MAX_SECONDS", 0.2)
    before = memory()
    expected = server.call("/v1/completions", SHORT).json["choices"]
    for case in cases(random.Random(11), most=150):
        check(server.call(case[1], case[2]), case)
    assert server.call("/v1/completions", SHORT).json["choices"] == expected
    while server.unfinished():
        time.sleep(0.01)
    assert memory() - before < 300 * 2**20
    assert server.app.models.memory.used < 2**28


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_many_harmful_requests(server: Served, seed: int) -> None:
    """As large as a body may be; another client never waits for long, and memory comes back."""
    for case in cases(random.Random(seed)):
        before, started = memory(), time.perf_counter()
        with another_client(server) as waits:
            check(server.call(case[1], case[2]), case)
        seconds, mib = time.perf_counter() - started, memory() - before >> 20
        print(f"{case[0]}: {seconds:.1f} s, others {max(waits):.2f} s, {mib} MiB")
        assert max(waits) < 2 and mib < 200, case[0]
