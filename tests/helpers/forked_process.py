"""A process that the server of `tests.helpers.forked` has forked; few imports, as every command of a shell has them."""

import json
import os
import select
import signal
import socket


class Process:
    """A process that the server has forked."""

    def __init__(
        self, address: str, arguments: list[str], cwd: str, environment: dict[str, str], streams: tuple[int, int, int]
    ) -> None:
        self.status: int | None = None
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(address)
        socket.send_fds(self.connection, [b" "], list(streams))
        self.connection.sendall(json.dumps([arguments, cwd, environment]).encode())
        self.connection.shutdown(socket.SHUT_WR)
        self.replies = self.connection.makefile()
        self.pid = int(self.replies.readline())

    def wait(self) -> int:
        """Its exit status, negative for a signal, once it has ended."""
        if self.status is None:
            with self.connection, self.replies:
                self.status = int(self.replies.readline())
        return self.status

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.status is None and not select.select([self.connection], [], [], 0)[0]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal if it has not ended."""
        if self.running():
            os.kill(self.pid, number)
