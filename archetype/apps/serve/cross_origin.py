"""Cross-origin requests (CORS): allowed origins, response headers and preflight."""

import re
from collections.abc import Iterable, Mapping

from archetype.errors import SpecError

ORIGIN = re.compile(r"https?://[\w.-]+(:\d+)?|https?://\[[\da-fA-F:]+\](:\d+)?|null|\*")
EXPOSED = "x-request-id, x-archetype-ignored, retry-after"  # headers that a page may read
SECONDS = "600"  # for which a browser caches a preflight response
Headers = list[tuple[bytes, bytes]]


class Origins:
    """Origins whose web pages may read responses.

    Args:
        allowed: origins such as https://example.org. `*` allows all origins.

    Raises:
        SpecError: an item is not an origin.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = {origin.rstrip("/").lower() for origin in allowed}
        for origin in sorted(self._allowed):
            if not ORIGIN.fullmatch(origin):
                raise SpecError("--allow-origin", f"{origin!r:.80} is not an origin", "write it as https://example.org")

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        """Return the CORS headers of the response to a request; empty if its origin is not allowed."""
        origin = request.get(b"origin")
        if origin is None or not self._allows(origin):
            # so that caches do not give this response, without CORS headers, to an allowed origin
            return [(b"vary", b"origin")] if self._allowed - {"*"} else []
        return [
            (b"access-control-allow-origin", origin),
            (b"vary", b"origin"),
            (b"access-control-expose-headers", EXPOSED.encode()),
        ]

    def preflight(self, method: str, request: Mapping[bytes, bytes]) -> Headers | None:
        """Return the headers of a preflight response; None if the request is not a preflight or is refused."""
        asked = request.get(b"access-control-request-method")
        if method != "OPTIONS" or asked not in (b"GET", b"POST") or not self._allows(request.get(b"origin", b"")):
            return None
        names = request.get(b"access-control-request-headers", b"")  # any header may be sent
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", names),
            (b"access-control-max-age", SECONDS.encode()),
            (b"content-length", b"0"),
        ]

    def _allows(self, origin: bytes) -> bool:
        return "*" in self._allowed or origin.decode("latin-1").lower() in self._allowed
