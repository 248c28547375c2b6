"""GET /gallery/: the pages that `archetype gallery` writes, made when they are first asked for."""

import asyncio
import mimetypes
from functools import cache

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange, Raw
from archetype.gallery.card import Card
from archetype.gallery.entries import TINY
from archetype.gallery.site import all_cards, files_of, shared_files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)  # a diagram has its own styles


async def gallery(exchange: Exchange) -> Raw:
    """Respond with a file of the gallery; the index for an empty name."""
    name = exchange.parameters["name"] or "index.html"
    # in a thread: the index needs the costs of all models
    data = await asyncio.to_thread(_file, name)
    if data is None:
        raise ApiError("unknown_url", "the gallery has no such file; see /gallery/")
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    headers = {
        "content-type": f"{kind}; charset=utf-8",
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Raw(data, headers)


@cache
def _cards() -> dict[str, Card]:
    return {card.entry.id: card for card in all_cards()}


@cache
def _shared() -> dict[str, bytes]:
    return dict(shared_files(list(_cards().values())))


@cache
def _files_of(model: str) -> dict[str, bytes]:
    cards = _cards()
    return dict(files_of(cards[model], list(cards.values()), editor="/")) if model in cards else {}


def _file(name: str) -> bytes | None:
    stem = name.rpartition(".")[0].removesuffix(TINY).removesuffix("-changes")
    # known names only: the cache must not grow with each name that is asked for
    if stem in _cards():
        return _files_of(stem).get(name)
    return _shared().get(name)
