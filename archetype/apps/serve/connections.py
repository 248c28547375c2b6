"""Time and memory limits for clients that stall in the middle of a request head or do not read, which uvicorn lacks."""

import time
from collections.abc import Collection
from typing import Any

from archetype.apps.serve.limits import ALL_WAITING_BYTES

HEADER_SECONDS = 10.0  # until the head of a request has arrived
SEND_SECONDS = 60.0  # within which a client has to read some of its unsent bytes


class Connections:
    """Monitor of a server's open connections.

    Args:
        connections: uvicorn's protocols, one per connection; may change between two checks.
    """

    def __init__(self, connections: Collection[Any]) -> None:
        self._connections = connections
        self._states: dict[Any, tuple[int, float]] = {}  # unsent bytes, and since when their number is unchanged

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that clients have not read yet."""
        return sum(map(_waiting_bytes, [*self._connections]))

    def check(self) -> None:
        """Drop clients that have stalled for too long, and the slowest clients while too many bytes are unsent."""
        now, states = time.monotonic(), dict[Any, tuple[int, float]]()
        for connection in [*self._connections]:
            waiting = _waiting_bytes(connection)
            if not waiting and not _expects_head(connection):
                continue
            # a client is stalled while its number of unsent bytes stays exactly the same
            before, since = self._states.get(connection, (waiting, now))
            states[connection] = waiting, since if waiting == before else now
            if waiting and now - states[connection][1] > SEND_SECONDS:
                connection.transport.abort()
            elif not waiting and now - states[connection][1] > HEADER_SECONDS:
                connection.transport.close()
        self._states = states
        # those that have not read for longest come first, then those with most bytes
        slowest = sorted(states, key=lambda connection: (states[connection][1], -states[connection][0]))
        excess = sum(waiting for waiting, _ in states.values()) - ALL_WAITING_BYTES
        while excess > 0:
            connection = slowest.pop(0)
            excess -= states[connection][0]
            connection.transport.abort()


def _waiting_bytes(connection: Any) -> int:
    return connection.transport.get_write_buffer_size()


def _expects_head(connection: Any) -> bool:
    # between two requests uvicorn's keep-alive timer runs, until the first byte of the next head
    is_idle = connection.cycle is None or connection.cycle.response_complete
    return is_idle and connection.timeout_keep_alive_task is None
