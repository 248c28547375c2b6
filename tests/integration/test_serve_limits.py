"""The server under clients that leave, stall, flood it or bring no key, and under a signal to stop."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import archetype
from archetype.apps.cli.serve import sources_of
from archetype.apps.serve import connections as connections_module
from archetype.apps.serve import generation
from archetype.apps.serve.limits import Limits
from archetype.apps.serve.models import Source
from archetype.apps.serve.server import listen
from archetype.errors import ArchetypeError
from tests.helpers import forked
from tests.helpers.serving import Served, read_reply, serving
from tests.integration.test_serve import no_network, tiny

__all__ = ["no_network"]  # the fixture, for this file too

LONG = {"prompt": "a", "max_tokens": 120, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A server with a key, and limits that are soon reached."""
    limits = Limits(body_bytes=2000, body_seconds=0.3, seconds=20)
    lm = tiny("llama-tiny", "vocab_size=257")
    with serving({"llama": lm}, ("secret", "other"), limits, slots=2, max_queue=1) as served:
        yield served


KEY = {"authorization": "Bearer secret"}


def wait_until_idle(served: Served) -> None:
    while served.unfinished():
        time.sleep(0.005)


def test_a_key_is_asked_for(small: Served) -> None:
    import openai

    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret2"}):
        reply = small.call("/v1/models", **headers)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert small.call("/v1/models", **KEY).status == 200
    assert small.call("/v1/models", api_key="other").status == 200
    assert small.call("/health").status == 200
    with (
        openai.OpenAI(base_url=small.url, api_key="no", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_sizes_and_times_are_limited(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = small.call("/v1/completions", {"prompt": "a" * 3000}, **KEY)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    reply = small.call("/v1/models", x="y" * 50_000)
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
    with small.connect() as connection:
        connection.sendall(b"\x00\x01 no http\r\n\r\n")
        assert read_reply(connection).status == 400  # by uvicorn: the application never sees it
    with small.connect() as connection:  # a body that does not come
        small.send(connection, "/v1/completions", b"", method="POST", content_length="10", **KEY)
        reply = read_reply(connection)
    assert (reply.status, reply.error["code"]) == (408, "request_timeout")
    assert reply.headers["x-should-retry"] == "false"
    monkeypatch.setattr(connections_module, "HEADER_SECONDS", 0.2)
    stalled = [small.connect() for _ in range(50)]  # heads that do not come
    for connection in stalled:
        connection.sendall(b"GET /v1/models HT")
    assert small.call("/health").status == 200
    for connection in stalled:
        assert connection.recv(10) == b""
        connection.close()


@pytest.mark.slow
def test_a_thousand_stalled_connections_hold_nobody_up(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a head, or a head and half of a body, from each; who asks meanwhile is answered as before."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    body = {"prompt": "a", "max_tokens": 20, "temperature": 0}
    before = small.call("/v1/completions", body, **KEY).json["choices"]
    monkeypatch.setattr(connections_module, "HEADER_SECONDS", 30)
    with contextlib.ExitStack() as connections:
        stalled = [connections.enter_context(small.connect()) for _ in range(1000)]
        for number, connection in enumerate(stalled):
            head = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            rest = b"authorization: Bearer secret\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
            connection.sendall(head + (rest if number % 2 else b""))
        for _ in range(20):
            assert small.call("/health").status == 200
            assert small.call("/v1/completions", body, **KEY).json["choices"] == before
        for connection in stalled[1::2]:
            assert read_reply(connection).status == 408
    wait_until_idle(small)
    assert small.call("/v1/completions", body, **KEY).json["choices"] == before


def test_a_chunk_is_written_by_the_callback_that_brings_it(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And few functions are called for it, of Python and of C."""
    [model] = small.app.models.loaded
    deliver, called = model.worker._deliver, list[list[str]]()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            is_socket = isinstance(getattr(argument, "__self__", None), socket.socket)
            name = frame.f_code.co_name if event == "call" else argument.__name__
            called[-1].append(f"socket.{name}" if is_socket else name)

    def counted(events: Any) -> None:
        called.append([])
        sys.setprofile(count)
        try:
            deliver(events)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(model.worker, "_deliver", counted)
    body = {"prompt": [5], "max_tokens": 50, "temperature": 0, "ignore_eos": True, "stream": True}
    assert small.call("/v1/completions", body | {"return_token_ids": True, "n": 2}, **KEY).events[-1] == "[DONE]"
    wait_until_idle(small)
    together = called[5:-5]  # steps that brought a token of both choices
    assert {names.count("socket.send") for names in together if names.count("chunk") == 2} == {1}
    assert max(map(len, together)) < 80


def test_the_thread_that_loads_a_model_ends_with_it() -> None:
    """Its helpers would slow down those of the thread in which the model runs."""
    threads = list[threading.Thread]()

    class Folders(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            threads.append(threading.current_thread())
            return super().__getitem__(name)

    with serving(Folders(llama=tiny("llama-tiny", "vocab_size=257"))):
        threads[0].join(30)
        assert not threads[0].is_alive()


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_not_served_any_more(small: Served, stream: bool) -> None:
    [model] = small.app.models.loaded
    assert model.worker.engine is not None
    engine = model.worker.engine
    before = engine.stats()
    connection = small.connect()
    small.send(connection, "/v1/completions", LONG | {"stream": stream, "n": 2}, **KEY)
    if stream:
        connection.recv(1)
    else:  # until it has both; one that leaves before is never the engine's
        while (now := engine.stats()).running < 2 and now.finished == before.finished:
            time.sleep(0.001)
    connection.close()
    wait_until_idle(small)
    after = engine.stats()
    assert (after.waiting, after.running) == (0, 0)
    assert after.finished == before.finished + 2
    assert after.generated_tokens - before.generated_tokens < 240


def test_a_silent_stream_says_that_it_is_alive(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "PING_SECONDS", 0.05)
    [model] = small.app.models.loaded
    busy = asyncio.run_coroutine_threadsafe(model.worker.run(lambda: time.sleep(0.4)), model.worker._loop)
    reply = small.call("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, **KEY)
    assert busy.result() is None and reply.body.count(b": ping\n\n") >= 2
    assert reply.events[-1] == "[DONE]"


def test_a_full_queue_refuses(small: Served) -> None:
    connections = []
    for _ in range(3):  # two slots, and a place in the queue
        connections.append(small.connect())
        small.send(connections[-1], "/v1/completions", LONG | {"stream": True}, **KEY)
    while small.unfinished() < 3:
        time.sleep(0.001)
    reply = small.call("/v1/completions", LONG, **KEY)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, "queue_full", "rate_limit_exceeded")
    assert reply.headers["retry-after"] == "1"
    for connection in connections:
        connection.close()
    wait_until_idle(small)
    assert small.call("/v1/completions", LONG | {"max_tokens": 2}, **KEY).status == 200


def test_models_share_a_budget_of_memory(tmp_path: Path) -> None:
    """The least recently used leaves for another, but none that is in use."""
    lm = tiny("llama-tiny", "vocab_size=257")
    size = sum(tensor.nbytes for tensor in lm.model.parameters())
    sources = [Source(name, str(tmp_path / name)) for name in ("one", "two", "three")]
    for source in sources:
        (tmp_path / source.name).mkdir()
        with (tmp_path / source.name / "model.safetensors").open("wb") as file:
            file.truncate(size)
    models = {source.place: lm for source in sources}
    with serving(models, sources=sources, memory_bytes=int(2.5 * size), slots=2) as served:

        def ask(name: str) -> int:
            return served.call("/v1/completions", {"prompt": "a", "model": name, "max_tokens": 1}).status

        def loaded() -> list[str]:
            return [model.name for model in served.app.models.loaded]

        assert loaded() == ["one"]
        assert [ask("two"), ask("one")] == [200, 200] and loaded() == ["one", "two"]
        assert ask("three") == 200 and loaded() == ["one", "three"]
        busy = [served.connect() for _ in range(2)]
        for connection, name in zip(busy, ("one", "three"), strict=True):
            served.send(connection, "/v1/completions", LONG | {"stream": True, "model": name})
            connection.recv(1)
        refused = served.call("/v1/completions", {"prompt": "a", "model": "two"})
        assert (refused.status, refused.error["code"]) == (503, "model_loading")
        assert refused.headers["retry-after"] == "5"
        for connection in busy:
            connection.close()
        wait_until_idle(served)
        assert ask("two") == 200


def test_what_fails_within_says_where_and_not_what(small: Served, caplog: pytest.LogCaptureFixture) -> None:
    [model] = small.app.models.loaded
    original = model.worker.text

    async def broken(*args: Any) -> None:
        raise RuntimeError("private words")

    model.worker.text = broken  # type: ignore[method-assign,assignment]
    try:
        reply = small.call("/v1/completions", {"prompt": "private words"}, **KEY)
    finally:
        model.worker.text = original  # type: ignore[method-assign]
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert reply.headers["x-should-retry"] == "false"
    assert "RuntimeError" in caplog.text and "private words" not in caplog.text + reply.body.decode()


def test_a_signal_lets_requests_finish(tmp_path: Path) -> None:
    """SIGTERM while eight streams run: each ends as it would have, and the process exits with 0."""
    folder = tmp_path / "model"
    tiny("llama-tiny", "vocab_size=257").save(folder)
    with (tmp_path / "output").open("w+b") as output:
        process = forked.start(["archetype", "serve", str(folder), "--port", "0"], tmp_path, dict(os.environ), output)
        try:
            port = port_of(tmp_path / "output", process)
            served = Served(None, None, port)  # type: ignore[arg-type]
            replies: list[Any] = []

            def ask() -> None:
                body = {"prompt": "a", "max_tokens": 100, "stream": True, "temperature": 0, "ignore_eos": True}
                with served.connect() as connection:
                    served.send(connection, "/v1/completions", body)
                    first = connection.recv(1)
                    started.release()
                    replies.append(read_reply(connection, first))

            started = threading.Semaphore(0)
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for _ in threads:
                started.acquire()
            os.kill(process.pid, signal.SIGTERM)
            for thread in threads:
                thread.join(60)
            assert [reply.status for reply in replies] == [200] * 8
            assert all(reply.events[-1] == "[DONE]" for reply in replies)
            assert len({tuple(c["text"] for e in reply.events[:-1] for c in e["choices"]) for reply in replies}) == 1
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port))


def port_of(file: Path, process: forked.Process) -> int:
    while process.running():
        if " at http://127.0.0.1:" in (text := file.read_text()):
            return int(text.rpartition(":")[2].partition("/")[0])
        time.sleep(0.02)
    raise AssertionError(file.read_text())


def test_the_time_to_finish_is_limited() -> None:
    """What is unfinished when the time is over ends with an error that says so."""
    lm = tiny("llama-tiny", "vocab_size=257", "context_length=4096")
    with serving({"llama": lm}, grace_seconds=0.1) as served:
        stream, whole = served.connect(), served.connect()
        body = LONG | {"max_tokens": 4000}
        served.send(stream, "/v1/completions", body | {"stream": True}, connection="close")
        served.send(whole, "/v1/completions", body, connection="close")
        while served.unfinished() < 2:
            time.sleep(0.001)
        stream.recv(1)
        served.server.should_exit = True
        reply = read_reply(whole)
        assert (reply.status, reply.error["code"]) == (503, "shutting_down")
        assert reply.headers["retry-after"] == "5"
        data = b""
        while piece := stream.recv(65536):
            data += piece
        assert b'data: {"error":' in data.replace(b'": ', b'":') and b"[DONE]" not in data
        stream.close()
        whole.close()


@pytest.mark.slow
def test_real_weights_answer_as_they_do_at_home(shared: Path) -> None:
    lm = archetype.load(shared / "stories260K", dtype="float64")
    prompts = ["Once upon a time", "Tom had", "", "The big red"]
    with serving({"stories": lm}) as served:
        body = {"prompt": prompts, "max_tokens": 100, "temperature": 0}
        texts = [choice["text"] for choice in served.call("/v1/completions", body).json["choices"]]
    assert texts == lm.generate(prompts, max_new_tokens=100, temperature=0.0)


def test_wrong_options_are_one_line(archetype: Any, tmp_path: Path) -> None:
    done = archetype("serve", tmp_path / "none")
    assert done.returncode == 2 and "there is no such folder" in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )
    for aliases, message in (
        (["a"], "--alias: 'a' is not ALIAS=NAME"),
        (["a=b"], "--alias: no served model is named 'b'"),
    ):
        with pytest.raises(ArchetypeError, match=message):
            sources_of([str(tmp_path)], aliases)
    [source] = sources_of([f"mine={tmp_path}"], ["gpt-4=mine"])
    assert source.name == "mine" and {*source.aliases} == {"gpt-4", str(tmp_path)}
    with pytest.raises(ArchetypeError, match="choose another --host or --port"):
        listen("256.0.0.1", 0)


def test_two_models_of_one_name_are_refused() -> None:
    from archetype.apps.serve.models import ModelOptions, Models

    with pytest.raises(ArchetypeError, match="two models have the same name"):
        Models([Source("a", "x"), Source("a", "y")], ModelOptions(open=lambda place: json.loads(place)))


def test_pages_of_allowed_origins_read_answers() -> None:
    """A browser asks before it posts JSON; its question brings no key, and every answer says who may read it."""
    ours, lm = "https://example.org", tiny("llama-tiny", "vocab_size=257")
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    with serving({"llama": lm}, ("secret",), origins=(f"{ours}/", "http://localhost:3000")) as served:
        for path in ("/v1/completions", "/nowhere"):
            told = served.call(path, method="OPTIONS", origin=ours, **asked)
            assert (told.status, told.body) == (204, b"")
            assert told.headers["access-control-allow-origin"] == ours and told.headers["vary"] == "origin"
            assert told.headers["access-control-allow-methods"] == "GET, POST"
            assert told.headers["access-control-allow-headers"] == asked["access_control_request_headers"]
        for path, body, status in (
            ("/v1/models", None, 401), ("/health", None, 200), ("/v1/completions", {"prompt": "a"}, 401),
        ):  # fmt: skip
            reply = served.call(path, body, origin="HTTP://localhost:3000")
            assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, "HTTP://localhost:3000")
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
        stream = {"prompt": "a", "max_tokens": 2, "stream": True}
        reply = served.call("/v1/completions", stream, origin=ours, authorization="Bearer secret")
        assert reply.events[-1] == "[DONE]" and reply.headers["access-control-allow-origin"] == ours
        for origin in ("https://example.com", "https://example.org.evil", "null", ""):
            told = served.call("/v1/completions", method="OPTIONS", origin=origin, **asked)
            assert told.status == 401 and "access-control-allow-origin" not in told.headers
        assert served.call("/health", method="OPTIONS", origin=ours).status == 405  # no question of a browser
        foreign = served.call("/health", method="OPTIONS", origin=ours, host="evil.example", **asked)
        assert foreign.status == 403
    with serving({"llama": lm}, origins=("*",)) as served:
        assert served.call("/health", origin="https://any.where").headers["access-control-allow-origin"]
    with serving({"llama": lm}) as served:
        assert served.call("/v1/completions", method="OPTIONS", origin=ours, **asked).status == 405
        assert "access-control-allow-origin" not in served.call("/health", origin=ours).headers
