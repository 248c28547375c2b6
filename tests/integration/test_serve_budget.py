"""What a request may cost: memory, bytes of answers, slots; who is at fault where it may not."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from archetype import load
from archetype.apps.cli.main import app
from archetype.apps.serve import connections as connections_module
from archetype.apps.serve import limits as limits_module
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.memory import Memory
from archetype.apps.serve.models import Source
from archetype.generate.grammar import LANES
from tests.helpers.serving import Reply, Served, read_reply, serving
from tests.integration.test_serve import no_network, tiny

__all__ = ["no_network"]  # the fixture, for this file too

PLAIN = {"prompt": [5], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving({"llama": tiny("llama-tiny", "vocab_size=257", "context_length=16384")}, slots=4) as one:
        for listening in one.server.servers:
            for connection in listening.sockets:  # the system itself shall hold little
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        yield one


def wait_until(holds: Any) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def open_slowly(served: Served, body: Any) -> socket.socket:
    """Send a request from a client whose system takes little by itself."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", served.port))
    served.send(connection, "/v1/completions", body, connection="close")
    return connection


def test_an_answer_that_is_too_large_is_refused(served: Served) -> None:
    reply = served.call("/v1/completions", PLAIN | {"n": 128, "max_tokens": 500, "logprobs": 20})
    assert (reply.status, reply.error["param"]) == (400, "max_tokens")
    assert (
        "make a response of 41 MiB; the limit is 16 MiB; ask for less, or stream the response" in reply.error["message"]
    )
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20, "n": 128}
    assert served.call("/v1/chat/completions", chat | {"max_tokens": 100}).error["param"] == "max_tokens"


def test_an_answer_to_many_leaves_a_slot_to_others(served: Served) -> None:
    """A short request is answered while 64 long ones that came first still wait for their turns."""
    with open_slowly(served, PLAIN | {"n": 64, "max_tokens": 300}) as many:
        [model] = served.app.models.loaded
        engine = model.worker.engine
        assert engine is not None
        wait_until(lambda: engine.stats().running == 3)
        assert served.call("/v1/completions", PLAIN | {"max_tokens": 3}).status == 200
        assert engine.stats().waiting > 40
        many.close()
    wait_until(lambda: not served.unfinished())


def text_of(reply: Reply) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in reply.events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_a_slow_reader_is_served_to_the_end_and_makes_no_pile(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not taken is bounded: its texts give up their slots meanwhile, and go on as they would have."""
    monkeypatch.setattr(connections_module, "SEND_SECONDS", 0.6)
    body = PLAIN | {"n": 4, "max_tokens": 60, "logprobs": 20, "stream": True}
    quick = served.call("/v1/completions", body)
    most, data = 0, b""
    with open_slowly(served, body) as connection:
        while piece := connection.recv(60_000):
            most = max(most, served.server.connections.waiting_bytes)
            data += piece
            time.sleep(0.005)
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"200 OK" in head and rest.endswith(b"0\r\n\r\n") and len(data) > 2**17
    slow = b"".join(line for line in rest.split(b"\r\n") if line.startswith(b"data: ") or not line)
    assert b"[DONE]" in slow
    texts: dict[int, str] = {}
    for line in rest.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == text_of(quick)
    assert most < 2**17


def test_a_stalled_reader_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "SEND_SECONDS", 0.3)
    with open_slowly(served, PLAIN | {"n": 64, "max_tokens": 9000, "logprobs": 20, "stream": True}) as connection:
        wait_until(lambda: served.unfinished() > 0)
        wait_until(lambda: not served.unfinished())  # nothing is read, and nothing is made any more
        connection.setblocking(True)
        with contextlib.suppress(ConnectionResetError):
            assert b"[DONE]" not in read_reply(connection).body


def test_all_that_waits_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many readers that stall, the slowest are dropped at once."""
    monkeypatch.setattr(connections_module, "ALL_WAITING_BYTES", 2**18)  # which four of them reach
    body = PLAIN | {"n": 20, "max_tokens": 9000, "logprobs": 20, "stream": True}
    stalled = [open_slowly(served, body) for _ in range(6)]
    wait_until(lambda: served.unfinished() >= 32 and len(served.server.server_state.connections) == 6)
    wait_until(lambda: len(served.server.server_state.connections) < 6)
    assert served.app.models.memory.used < 2**27
    for connection in stalled:
        connection.close()
    wait_until(lambda: not served.unfinished())


def test_one_budget_counts_what_all_need() -> None:
    memory = Memory(2**31)
    memory.weights = lambda: 2**30
    memory.others.append(lambda: 2**28)
    with memory.hold(2**29, "one"):
        with pytest.raises(
            ApiError, match="two takes 512 MiB of memory, and other requests use 768 of 1,024 MiB"
        ) as now:
            memory.check(2**29, "two")
        with pytest.raises(ApiError, match="input: three takes 2,048 MiB of memory, more than the 1,024 MiB") as ever:
            memory.check(2**31, "three", "input")
        memory.check(limits_module.COUNTED_BYTES, "a small one")
    memory.check(2**29, "two")
    assert (now.value.status, now.value.headers["retry-after"]) == (503, "1")
    assert (ever.value.status, ever.value.param) == (400, "input")
    small = Memory(1)
    small.others.append(lambda: 2**28)  # what is kept leaves room, and so do the weights
    small.check(limits_module.WORK_BYTES, "a picture")


def test_the_budget_is_of_the_device_that_holds_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"cpu": 2**34, "cuda": 2**30}
    monkeypatch.setattr("archetype.machine.memory.free_memory", lambda device: free[device.type])
    monkeypatch.setattr("archetype.machine.device.resolve_device", torch.device)
    assert [Memory(None, device).total for device in free] == [size * 9 // 10 for size in free.values()]
    assert Memory(2**20, "cuda").total == 2**20
    told = []
    monkeypatch.setattr("archetype.apps.serve.models.Models", lambda _, options: told.append(options) or exit(3))
    assert CliRunner().invoke(app, ["serve", "--device", "cuda:1"]).exit_code == 3
    assert [options.device for options in told] == ["cuda:1"]


def test_pictures_wait_for_the_memory_of_others() -> None:
    from tests.helpers.hostile_requests import picture
    from tests.integration.test_serve import models

    url = picture(3000, 3000)
    body = {"input": [{"type": "image_url", "image_url": {"url": url}}]}
    with serving({"vit": models()["vit"]}, memory_bytes=1) as served:
        memory = served.app.models.memory
        with memory.hold(2**27 + 2**26, "others"):
            reply = served.call("/v1/classify", body)
            assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "memory_full", "1")
        assert served.call("/v1/classify", body).status == 200
        reply = served.call(
            "/v1/classify", {"input": [{"type": "image_url", "image_url": {"url": picture(9000, 5000, "1")}}]}
        )
        assert (reply.status, reply.error["param"]) == (400, "input") and "9,000 x 5,000" in reply.error["message"]


def test_whose_fault_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged folder is the user's, with place and remedy, and so is a model that never fits; ours has an id."""
    lm = tiny("llama-tiny", "vocab_size=257")
    sources = []
    for name in ("good", "cut", "large", "huge"):
        lm.save(tmp_path / name)
        sources.append(Source(name, str(tmp_path / name)))
    file = next((tmp_path / "cut").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])
    size = sum(tensor.nbytes for tensor in lm.model.parameters())
    for name, times in (("large", 1.7), ("huge", 3)):
        with next((tmp_path / name).rglob("*.safetensors")).open("r+b") as weights:
            weights.truncate(int(times * size))

    class Folders(dict[str, Any]):
        def __getitem__(self, place: str) -> Any:
            return load(place)

    with serving(Folders(), sources=sources, memory_bytes=2 * size + 2**20 // 2) as served:
        served.app.models.memory.others.clear()
        body = PLAIN | {"max_tokens": 1}
        cut = served.call("/v1/completions", body | {"model": "cut"})
        assert (cut.status, cut.error["param"]) == (400, "model"), cut.body
        assert "model: cut cannot be loaded: " in cut.error["message"] and ".safetensors" in cut.error["message"]
        huge = served.call("/v1/completions", body | {"model": "huge"})
        assert huge.status == 400 and "start the server with a larger --memory" in huge.error["message"], huge.body
        [model] = served.app.models.loaded

        def broken(*arguments: Any, **settings: Any) -> None:
            raise RuntimeError("secret")

        model.worker.submit = broken  # type: ignore[method-assign,assignment]
        ours = served.call("/v1/completions", body)
    id = ours.headers["x-request-id"]
    assert ours.status == 500 and id in ours.error["message"] and f"{id}: RuntimeError at" in caplog.text


def test_work_for_a_client_that_left_never_begins(served: Served) -> None:
    """Grammars that wait are not compiled for nobody, and their places are free again."""
    [model] = served.app.models.loaded
    gate, compiled = threading.Event(), list[Any]()
    engine = model.worker.engine
    assert engine is not None
    grammar = engine.grammar

    def slow(settings: Any) -> Any:
        if settings.regex is not None:
            compiled.append(settings)
            gate.wait(20)
        return grammar(settings)

    engine.grammar = slow  # type: ignore[method-assign]
    try:
        connections = [served.connect() for _ in range(limits_module.GRAMMARS_WAITING)]
        for number, connection in enumerate(connections):
            served.send(connection, "/v1/completions", PLAIN | {"guided_regex": f"a{{{number + 1}}}"})
        wait_until(lambda: model.worker._num_compiling == limits_module.GRAMMARS_WAITING)
        full = served.call("/v1/completions", PLAIN | {"guided_regex": "b"})
        assert (full.status, full.error["code"]) == (429, "queue_full")
        assert served.call("/v1/completions", PLAIN | {"max_tokens": 2, "prompt": "a"}).status == 200  # meanwhile
        for connection in connections:
            connection.close()
        wait_until(lambda: model.worker._num_compiling <= LANES)
    finally:
        gate.set()
        del engine.grammar
    wait_until(lambda: model.worker._num_compiling == 0)
    assert len(compiled) == LANES


def test_a_grammar_does_not_wait_for_a_large_one(served: Served) -> None:
    [model] = served.app.models.loaded
    gate, engine = threading.Event(), model.worker.engine
    assert engine is not None
    wait_until(lambda: engine._grammars is not None)  # made at the start, not for the first request
    grammar = engine.grammar

    def slow(settings: Any) -> Any:
        if settings.regex == "large":
            gate.wait(20)
        return grammar(settings)

    engine.grammar = slow  # type: ignore[method-assign]
    try:
        connection = served.connect()
        served.send(connection, "/v1/completions", PLAIN | {"guided_regex": "large"})
        wait_until(lambda: model.worker._num_compiling == 1)
        small = served.call("/v1/completions", PLAIN | {"guided_regex": "b{3}", "max_tokens": 9})
        assert small.json["choices"][0]["text"] == "bbb" and model.worker._num_compiling == 1
        connection.close()
    finally:
        gate.set()
        del engine.grammar
    wait_until(lambda: model.worker._num_compiling == 0)
