"""Screens on a phone, a laptop and a wide display: nothing is clipped, and nothing reaches beyond its card."""

from urllib.parse import urlencode

import pytest

from benchmarks import pictures
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.serving import Served
from tests.page.browser import Page

SIZES = {"phone": (390, 844), "laptop": (1280, 800), "wide": (1920, 1080)}
PRESETS = ("llama-3-8b", "deepseek-v2", "t5-small")
TOKEN = {"view": "token", "text": "a cat, a cat", "token": 5, "layer": 1}
SCREENS = {  # by a name: the screen with its state, and what shows that it is ready
    "home": ("home", {}, "main h1"),
    **{f"architecture of {name}": ("architecture", {"spec": f"preset:{name}"}, "rect.box") for name in PRESETS},
    "hybrid": pictures.hybrid()[:3],
    "a part": ("architecture", {"spec": "preset:llama-3-8b", "part": "blocks.*.mixer.q"}, "rect.selected"),
    "two models": ("architecture", {"spec": "preset:gpt2", "against": "preset:llama-3-8b"}, "rect.box"),
    "spec": ("spec", {"spec": "preset:llama-3-8b"}, "[data-number=parameters]"),
    "transplant": ("transplant", {"spec": "preset:mixtral-tiny", "text": "a cat, a cat"}, "[data-number=kl]"),
    "position": ("position", {"spec": "preset:llama-3-8b"}, "[data-number=theta]"),
    "position of t5": ("position", {"spec": "preset:t5-small"}, "[data-number=buckets]"),
    "write": ("write", {}, "textarea"),
    "token": ("inside", TOKEN, "[data-norm]"),
    "token of a source": ("inside", TOKEN | {"model": "t5-tiny", "target": "un chat"}, "[data-norm]"),
    "token of latent attention": ("inside", TOKEN | {"model": "deepseek-v2-tiny"}, "[data-norm]"),
    **{view: ("inside", {"view": view, "text": "a cat, a cat"}, ready) for view, ready in (
        ("flow", "figure canvas"), ("attention", "[data-map] canvas"), ("lens", "[data-kl]"))},
    "experts": ("inside", {"view": "experts", "text": "a cat", "model": "mixtral-tiny"}, "[data-gates] canvas"),
    "recurrent": ("inside", {"view": "recurrent", "text": "a cat", "model": "mamba-tiny"}, "[data-path] path"),
    "state": ("state", {}, "[data-saved]"),
    "runs": ("runs", {}, "main h1"),
    "reports": ("reports", {}, "main h1"),
}  # fmt: skip
# Code, tables of data and long lists scroll; so does a diagram that was zoomed into. Nothing else hides what it holds.
CUT = """
() => {
  const scrolls = 'textarea, input, select, pre, .cm-editor, .data, [aria-label$=scrollable], aside, .panel'
  const unseen = '.hidden, .skip, option, title, details:not([open]) > :not(summary)'
  const found = []
  const say = (what, element) => {
    const text = element.textContent.trim().slice(0, 40)
    found.push(`${what}: ${element.tagName.toLowerCase()}.${element.getAttribute('class') ?? ''} ${text}`)
  }
  const aside = (box, edge, by) => box.left < edge.left - by || box.right > edge.right + by
  const below = (box, edge, by) => box.top < edge.top - by || box.bottom > edge.bottom + by
  if (document.documentElement.scrollWidth > innerWidth) say('the page is wider than the window', document.body)
  for (const element of document.querySelectorAll('header *, main *')) {
    const box = element.getBoundingClientRect()
    if (element.closest(scrolls) || element.closest(unseen) || !box.width || !box.height) continue
    const style = getComputedStyle(element)
    if (element instanceof HTMLElement) {
      if (style.overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1) say('clipped aside', element)
      if (style.overflowY !== 'visible' && element.scrollHeight > element.clientHeight + 1) say('clipped', element)
    }
    const card = element.parentElement.closest('.card')
    if (aside(box, (card ?? element.closest('main, header')).getBoundingClientRect(), 1)) say('beyond', element)
    if (card && below(box, card.getBoundingClientRect(), 1)) say('above or below', element)
    const edge = element.tagName === 'text' && element.closest('svg').getBoundingClientRect()
    if (edge && (aside(box, edge, 2) || below(box, edge, 2))) say('beyond its picture', element)
  }
  return found
}
"""
PLACE = "() => document.querySelector('.picture svg').getBoundingClientRect().toJSON()"


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The tab notes every request to another place than the server."""


def show(page: Page, name: str) -> None:
    """Open a screen anew."""
    screen, values, ready = SCREENS[name]
    page.tab.goto("about:blank")
    page.open(f"{screen}?{urlencode({'model': 'llama-tiny'} | values)}")
    page.tab.wait_for_selector(ready, state="attached")
    page.tab.wait_for_function("() => !document.querySelector('[aria-busy=true]')")


def resize(page: Page, size: str) -> None:
    """Show the screen in another window, once everything has taken its new size."""
    width, height = SIZES[size]
    page.tab.set_viewport_size({"width": width, "height": height})
    page.tab.wait_for_timeout(120)


@pytest.mark.parametrize("name", every(5, SCREENS))
def test_nothing_is_cut(name: str, page: Page, server: Served) -> None:
    resize(page, "wide")
    show(page, name)
    for size in SIZES:
        with case(name, size):
            resize(page, size)
            cut: list[str] = page.tab.evaluate(CUT)
            assert cut == []


@pytest.mark.parametrize("name", every(2, reversed(PRESETS)))
def test_a_whole_diagram_is_seen_at_once_on_a_laptop(name: str, page: Page, server: Served) -> None:
    resize(page, "wide")
    show(page, f"architecture of {name}")
    for size in ("laptop", "wide"):
        with case(size):
            resize(page, size)
            edges = page.tab.evaluate(PLACE)
            assert 0 <= edges["left"] < edges["right"] <= SIZES[size][0] and edges["bottom"] <= SIZES[size][1]
            assert page.tab.evaluate("() => scrollY") == 0


def test_what_is_cut_is_noticed(page: Page, server: Served) -> None:
    show(page, "architecture of llama-3-8b")
    assert page.tab.evaluate(CUT) == []
    page.tab.evaluate("() => { document.querySelector('.picture svg').style.width = '3000px' }")
    faults = page.tab.evaluate(CUT)
    assert any(one.startswith("clipped aside: div.picture") for one in faults)
    assert any(one.startswith("beyond") for one in faults)
