"""Status, headers and errors of responses."""

import logging
import secrets
import traceback

from starlette.exceptions import HTTPException
from starlette.types import Message, Send

from archetype.apps.serve.cross_origin import Headers
from archetype.apps.serve.errors import ApiError, api_error, event

log = logging.getLogger("archetype.apps.serve.app")


class Answering:
    """Response to one request: records the status and adds the common headers.

    Args:
        headers: headers of every response, in addition to the request id.

    Attributes:
        status: HTTP status; 499 until the response has started.
        id: value of the x-request-id header.
    """

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send, self._headers = send, headers
        # 499 is nginx's status for a client that has closed the connection before a response
        self.status, self._is_stream, self._is_complete = 499, False, False
        self.id = f"req_{secrets.token_hex(12)}"

    async def send(self, message: Message) -> None:
        """Send an ASGI message. The first message also carries the request id and the common headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_stream = any(value == b"text/event-stream" for _, value in message["headers"])
            message["headers"] = [*message["headers"], *self._headers, (b"x-request-id", self.id.encode())]
        else:
            self._is_complete = not message.get("more_body")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Send an error as the response or, once a stream has started, as its last event."""
        if self.status != 499:
            # the status line has been sent, so only an event can still report the error
            if self._is_stream and not self._is_complete:
                await self.send({"type": "http.response.body", "body": event(error.body)})
            return
        body, headers = error.body, {"content-type": "application/json"} | error.headers
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


def refusal(error: Exception, id: str) -> ApiError:
    """Convert a handler's exception to the client's error. Log internal errors without the body of the request."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"this method is not allowed here; use {allowed}"
        return ApiError("method_not_allowed", message, headers={"allow": allowed})
    answer = api_error(error)
    if answer.code == "internal_error":
        cause = error if answer.cause is None else answer.cause
        # file and line only: the exception's text may quote the request
        frames = traceback.extract_tb(cause.__traceback__)
        lines = (f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        log.error("%s: %s at\n  %s", id, type(cause).__name__, "\n  ".join(lines))
        answer.message = f"{answer.message} ({id})"
    return answer
