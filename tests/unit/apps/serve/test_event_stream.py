"""Streams of events to a client that falls behind: order, back-pressure, and nothing lost."""

import asyncio
from typing import Any

from starlette.types import Message

from archetype.apps.serve.exchange import Exchange


class Client:
    """ASGI send function of a client that reads only while it is `ready`; it suspends before it takes anything."""

    def __init__(self) -> None:
        self.ready, self.taken = asyncio.Event(), list[Message]()
        self.ready.set()

    async def send(self, message: Message) -> None:
        if not self.ready.is_set():
            await self.ready.wait()
        self.taken.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.taken)


def test_events_wait_for_a_slow_client_in_their_order() -> None:
    async def run() -> None:
        client, pauses = Client(), list[bool]()
        exchange = Exchange({"app": None}, b"", client.send)
        async with exchange.open_stream(pauses.append, last=b"end") as stream:
            stream.write(b"a")
            assert client.body == b"a" and not pauses  # at once, without a task
            client.ready.clear()
            for event in (b"b", b"c", b"d"):
                stream.write(event)
            await asyncio.sleep(0)
            assert client.body == b"a" and pauses == [True]
            client.ready.set()
            await stream.flush()
            assert client.body == b"abcd" and pauses == [True, False]
            stream.write(b"e")
            assert client.body == b"abcde"
            client.ready.clear()
            stream.write(b"f")
            asyncio.get_running_loop().call_soon(client.ready.set)
        assert client.body == b"abcdefend" and not client.taken[-1].get("more_body")

    asyncio.run(run())


def test_a_stream_that_fails_sends_nothing_afterwards() -> None:
    async def run() -> None:
        client, failed = Client(), False
        exchange: Any = Exchange({"app": None}, b"", client.send)
        try:
            async with exchange.open_stream() as stream:
                client.ready.clear()
                stream.write(b"a")
                raise RuntimeError
        except RuntimeError:
            failed = True
        client.ready.set()
        await asyncio.sleep(0.01)
        assert failed and client.body == b""

    asyncio.run(run())
