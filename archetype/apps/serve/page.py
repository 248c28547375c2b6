"""GET / and /assets: the built web UI, or instructions to build it."""

import mimetypes
import secrets
from pathlib import Path

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange, Raw

FOLDER = Path(__file__).parent / "page"  # written by `make page`, never committed
HOW_TO_BUILD = "run `make page` in a checkout (wheels have it)"
MISSING = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Archetype</title>
<h1>Archetype</h1>
<p>The API is running: see <a href="/v1/models">/v1/models</a> and <a href="/metrics">/metrics</a>.</p>
<p>The web UI is not built. Build it with <code>make page</code> in a checkout, and start the server again.</p></html>
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
IMMUTABLE = "public, max-age=31536000, immutable"


def is_built() -> bool:
    return (FOLDER / "index.html").is_file()


async def index(exchange: Exchange) -> Raw:
    """Respond with the web UI, or with instructions to build it."""
    # a nonce per response lets the page's own inline style pass the content security policy
    file, nonce = FOLDER / "index.html", secrets.token_urlsafe(16)
    text = file.read_text(encoding="utf-8").replace("{{nonce}}", nonce) if is_built() else MISSING
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": POLICY.format(nonce=nonce),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Raw(text.encode(), headers)


async def asset(exchange: Exchange) -> Raw:
    """Serve a file of the web UI, compressed if the browser accepts it. File names change with their contents."""
    folder = (FOLDER / "assets").resolve()
    file = (folder / exchange.parameters["path"]).resolve()
    # a path with .. or a link must not lead out of the folder
    if not file.is_relative_to(folder) or not file.is_file():
        raise ApiError("unknown_url", "the web UI has no such file; reload the page")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = {
        "content-type": kind,
        "cache-control": IMMUTABLE,
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    compressed = file.with_name(f"{file.name}.gz")
    if compressed.is_file() and "gzip" in exchange.request_header("accept-encoding"):
        file, headers = compressed, headers | {"content-encoding": "gzip"}
    return Raw(file.read_bytes(), headers)
