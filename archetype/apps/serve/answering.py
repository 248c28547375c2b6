"""What is sent to a client: the head that every answer bears, and errors in the shape of all others."""

import logging
import secrets
import traceback

from starlette.exceptions import HTTPException
from starlette.types import Message, Send

from archetype.apps.serve.cross_origin import Headers
from archetype.apps.serve.errors import ApiError, api_error, event

log = logging.getLogger("archetype.apps.serve.app")


def request_id() -> str:
    """A new value for the header that every answer bears."""
    return f"req_{secrets.token_hex(12)}"


class Answering:
    """The status and headers that were sent to a client.

    Args:
        send: of ASGI.
        headers: of every answer, beside the request's id.

    Attributes:
        status: of HTTP; 499 as long as nothing was sent.
        id: of the request, which every answer bears.
    """

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send, self._headers = send, headers
        self.status, self._is_stream, self._is_complete = 499, False, False
        self.id = request_id()

    async def send(self, message: Message) -> None:
        """Send a message of ASGI; the first gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_stream = any(value == b"text/event-stream" for _, value in message["headers"])
            message["headers"] = [*message["headers"], *self._headers, (b"x-request-id", self.id.encode())]
        else:
            self._is_complete = not message.get("more_body")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Send an error: as an answer, or as the last event of a stream."""
        if self.status != 499:
            if self._is_stream and not self._is_complete:
                await self.send({"type": "http.response.body", "body": event(error.body)})
            return
        body, headers = error.body, {"content-type": "application/json"} | error.headers
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


def refusal(error: Exception, id: str) -> ApiError:
    """An error that a handler raised, as a client sees it; a fault of ours goes to the log, without any contents.

    Args:
        error: that was raised.
        id: of the request, by which the log has it.
    """
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"this method is not allowed here; use {allowed}"
        return ApiError("method_not_allowed", message, headers={"allow": allowed})
    said = api_error(error)
    if said.code == "internal_error":
        cause = error if said.cause is None else said.cause
        places = (f"{one.filename}:{one.lineno} {one.name}" for one in traceback.extract_tb(cause.__traceback__))
        log.error("%s: %s at\n  %s", id, type(cause).__name__, "\n  ".join(places))
        said.message = f"{said.message} ({id})"
    return said
