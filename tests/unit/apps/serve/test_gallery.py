"""GET /gallery/: the same pages as `archetype gallery` writes, and nothing else."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from archetype.apps.serve import gallery as serving
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange, Raw
from archetype.gallery.entries import entries
from archetype.gallery.site import all_cards, files_of
from tests.helpers.examples import every

FEW = ("deepseek-v3", "kimi-k2", "deepseek-v4.1-flash")


def forget() -> None:
    """Forget all pages."""
    for cached in (serving._cards, serving._shared, serving._files_of):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def small_gallery(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A gallery of three models, whose index is made at once."""
    monkeypatch.setattr("archetype.gallery.site.entries", lambda: {name: entries()[name] for name in FEW})
    forget()
    yield
    forget()


def get(name: str) -> Raw:
    """The response to a request for a file."""
    return asyncio.run(serving.gallery(cast(Exchange, SimpleNamespace(parameters={"name": name}))))


def test_a_page_is_that_of_the_written_gallery_with_this_server_as_editor() -> None:
    cards = all_cards()
    (card,) = (card for card in cards if card.entry.id == "kimi-k2")
    written: dict[str, Any] = dict(files_of(card, cards))
    for name, data in written.items():
        answer = get(name)
        assert answer.data == data.replace(b"http://127.0.0.1:8000/#/spec", b"/#/spec")
        assert "script-src 'self';" in answer.headers["content-security-policy"]
    kinds = {name: get(name).headers["content-type"].partition(";")[0] for name in ("kimi-k2.html", "gallery.js")}
    assert kinds["kimi-k2.html"] == "text/html" and "javascript" in kinds["gallery.js"]


def test_the_index_is_the_page_without_a_name() -> None:
    assert get("").data == get("index.html").data
    assert all(f'data-id="{name}"'.encode() in get("").data for name in FEW)


@pytest.mark.parametrize(
    "name", every(3, ["../secret", "kimi-k2", "deepseek-v4.1-flash.yaml", "added.json", "kimi-k2.html/", "x.html"])
)
def test_another_name_is_not_found(name: str) -> None:
    with pytest.raises(ApiError, match="the gallery has no such file"):
        get(name)
