"""Many clients for minutes: nothing is lost, and nothing grows."""

import contextlib
import os
import random
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import forked
from tests.helpers.serving import Served, read_reply
from tests.integration.test_serve import no_network, tiny
from tests.integration.test_serve_limits import LONG, port_of

__all__ = ["no_network"]  # the fixture, for this file too

CLIENTS, SECONDS, STALLED = 64, float(os.environ.get("ARCHETYPE_SOAK_SECONDS", "180")), 1000


def memory_of(process: forked.Process) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def body_of(number: int) -> dict[str, Any]:
    """One of few requests, of mixed lengths."""
    prompt = "".join(chr(97 + (number * place) % 26) for place in range(1 + 7 * (number % 9)))
    return {"prompt": prompt, "max_tokens": 1 + (number * 13) % 60, "temperature": 0, "stream": number % 2 == 0}


def text_of(reply: Any) -> str:
    """What an answer says, streamed or not."""
    assert reply.status == 200, reply.body
    parts = reply.events[:-1] if reply.headers["content-type"] == "text/event-stream" else [reply.json]
    return "".join(choice["text"] for part in parts for choice in part["choices"])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_many_clients_for_minutes(tmp_path: Path) -> None:
    """Every answer equals its single run, memory stays flat, and a signal to stop loses nothing.

    Printed (`-s`): answers, memory, and how quickly /health answers meanwhile. ARCHETYPE_SOAK_SECONDS says how long.
    """
    tiny("llama-tiny", "vocab_size=257").save(tmp_path / "model")
    with (tmp_path / "output").open("w+b") as output:
        command = ["archetype", "serve", str(tmp_path / "model"), "--port", "0"]
        process = forked.start(command, tmp_path, dict(os.environ), output)
        try:
            served = Served(None, None, port_of(tmp_path / "output", process))  # type: ignore[arg-type]
            alone = [text_of(served.call("/v1/completions", body_of(number))) for number in range(40)]
            until, failures, answered = time.monotonic() + SECONDS, list[str](), list[int]()

            def ask(client: int) -> None:
                draw = random.Random(client)
                while time.monotonic() < until and not failures:
                    number = draw.randrange(40)
                    if draw.random() < 0.2:  # goes away
                        with served.connect() as connection:
                            served.send(connection, "/v1/completions", LONG | {"stream": True})
                            connection.recv(draw.randint(1, 2000))
                    elif (text := text_of(served.call("/v1/completions", body_of(number)))) != alone[number]:
                        failures.append(f"{number}: {text!r} is not {alone[number]!r}")
                    else:
                        answered.append(number)

            threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
            for thread in threads:
                thread.start()
            stalled = [
                served.connect() for _ in range(min(STALLED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
            ]
            for connection in stalled:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
            time.sleep(SECONDS / 5)
            before, health = memory_of(process), list[float]()
            while time.monotonic() < until:
                started = time.perf_counter()
                assert served.call("/health").status == 200
                health.append(time.perf_counter() - started)
                time.sleep(0.1)
            after = memory_of(process)
            for thread in threads:
                thread.join()
            for connection in stalled:
                connection.close()
            assert failures == []
            p99, sizes = 1e3 * sorted(health)[int(0.99 * len(health))], (before >> 20, after >> 20)
            print(f"\n{len(answered)} answers; /health p99 {p99:.0f} ms; MiB after a fifth and at the end: {sizes}")
            assert after < 1.1 * before
            last = [served.connect() for _ in range(20)]
            for connection in last:
                served.send(connection, "/v1/completions", body_of(7), connection="close")
            last[0].recv(1, socket.MSG_PEEK)
            os.kill(process.pid, signal.SIGTERM)
            for connection in last:
                with connection, contextlib.suppress(ConnectionResetError):  # refused before it was read
                    reply = read_reply(connection)
                    assert reply.status == 503 or text_of(reply) == alone[7]
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()
