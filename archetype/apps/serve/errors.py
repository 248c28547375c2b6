"""Errors of the API: table of codes, and JSON format."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import TypedDict

from archetype.errors import ArchetypeError, CheckpointError, one_line, shorten

INVALID, SERVER, LIMIT = "invalid_request_error", "server_error", "rate_limit_exceeded"
MAX_CHARACTERS = 2000  # of a message; a whole error has at most 4 KB
# code: status and type. OpenAI's clients retry after 408, 409, 429 and every 5xx, unless a header says not to.
CODES = {
    "invalid_json": (400, INVALID),
    "invalid_value": (400, INVALID),
    "unknown_parameter": (400, INVALID),
    "unsupported_parameter": (400, INVALID),
    "no_chat_template": (400, INVALID),
    "context_length_exceeded": (400, INVALID),
    "invalid_api_key": (401, INVALID),
    "host_not_allowed": (403, INVALID),
    "model_not_found": (404, INVALID),
    "inspection_not_found": (404, INVALID),
    "run_not_found": (404, INVALID),
    "report_not_found": (404, INVALID),
    "unknown_url": (404, INVALID),
    "method_not_allowed": (405, INVALID),
    "request_timeout": (408, INVALID),
    "request_too_large": (413, INVALID),
    "media_type": (415, INVALID),
    "headers_too_large": (431, INVALID),
    "queue_full": (429, LIMIT),
    "internal_error": (500, SERVER),
    "memory_full": (503, SERVER),
    "model_loading": (503, SERVER),
    "shutting_down": (503, SERVER),
}
NO_RETRY = {"x-should-retry": "false"}
HEADERS = {
    "invalid_api_key": {"www-authenticate": "Bearer"},
    "request_timeout": NO_RETRY,
    "internal_error": NO_RETRY,
    "queue_full": {"retry-after": "1"},
    "memory_full": {"retry-after": "1"},
    "model_loading": {"retry-after": "5"},
    "shutting_down": {"retry-after": "5"},
}


class ErrorBody(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    error: ErrorBody


class ApiError(Exception):
    """Error response to a request.

    Args:
        code: a key of `CODES`.
        message: cause and remedy.
        param: field of the body that caused the error.
        headers: response headers, in addition to those of the code.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.type = CODES[code]
        self.code, self.message, self.param = code, message, param
        self.cause: BaseException | None = None  # exception behind an internal error, for the log
        self.headers = HEADERS.get(code, {}) | (headers or {})

    @property
    def body(self) -> bytes:
        """Return the error as JSON with all four keys present."""
        message = shorten(one_line(self.message), MAX_CHARACTERS)
        fields: ErrorBody = {"message": message, "type": self.type, "param": self.param, "code": self.code}
        answer: Error = {"error": fields}
        return json.dumps(answer).encode()


def api_error(error: BaseException, param: str | None = None) -> ApiError:
    """Convert an exception to an API error. Internal errors do not reveal the body of the request.

    Args:
        param: field of the body if the caller is at fault (default: from the error's place).
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ArchetypeError) and not isinstance(error, CheckpointError):
        return ApiError("invalid_value", str(error), param or _field(error.place))
    message = "internal server error; see the server's log"
    refusal = ApiError("internal_error", str(error) if isinstance(error, CheckpointError) else message)
    refusal.cause = error
    return refusal


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Answer an exception as a mistake in a field of the body."""
    try:
        yield
    except Exception as error:
        raise api_error(error, param) from None


def invalid_value(field: str, problem: str) -> ApiError:
    """Return the error for a wrong value of a field, such as `messages[0].content`."""
    return ApiError("invalid_value", f"{field}: {problem}", _field(field))


def unsupported(param: str, remedy: str) -> ApiError:
    """Return the error for a field that would change the response but is not supported."""
    return ApiError("unsupported_parameter", f"{param}: is not supported; {remedy}", param.partition(".")[0])


# settings of `Sampling` with another name in the API
FIELDS = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "llguidance": "response_format"}


def _field(location: str) -> str | None:
    name = location.partition(".")[0].partition("[")[0].partition(" ")[0]
    return FIELDS.get(name, name) if name.isidentifier() else None


encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def event(data: Any) -> bytes:
    """Encode one server-sent event.

    Args:
        data: JSON bytes, or an object to encode as JSON.
    """
    body = data if isinstance(data, bytes) else encode_json(data).encode()
    return b"data: " + body + b"\n\n"
