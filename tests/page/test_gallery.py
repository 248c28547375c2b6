"""The written gallery in a browser, from files: three widths, the search, the slider, and no foreign request."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from archetype.gallery.site import write_site
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.page.browser import CHROMIUM, chromium

FEW = (
    "llama-3-8b",
    "deepseek-v3",
    "gemma-3-27b",
    "kimi-k2",
    "granite-4.1-30b",
    "nemotron-3-nano-30b-a3b",
    "deepseek-v4.1-flash",
)
WIDTHS = {360: 740, 768: 1024, 1280: 800}
# What is wider than the window, or reaches beyond it outside of a region that scrolls.
CUT = """
() => [...document.querySelectorAll('body *')].filter((one) => {
  const box = one.getBoundingClientRect(), scrolls = '.data, .picture, pre, svg, select, [hidden]'
  return box.width && !one.closest(scrolls) && (box.right > innerWidth + 1 || box.left < -1)
}).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of each kind of card."""
    folder = tmp_path_factory.mktemp("gallery")
    write_site(folder, only=FEW)
    return folder


@pytest.fixture(scope="module")
def tab(site: Path) -> Iterator[Any]:
    """A tab; nothing may have gone wrong in it."""
    if CHROMIUM is None or find_spec("playwright") is None:
        pytest.skip("needs playwright, and a chromium")
    faults: list[str] = []
    with chromium() as browser:
        tab = browser.new_page()
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("console", lambda message: faults.append(message.text))
        tab.on("request", lambda request: None if request.url.startswith(site.as_uri()) else faults.append(request.url))
        yield tab
        assert faults == []


@pytest.mark.parametrize("name", ["index", *every(3, FEW)])
def test_nothing_is_cut_at_three_widths(name: str, tab: Any, site: Path) -> None:
    tab.goto((site / f"{name}.html").as_uri())
    for width, height in WIDTHS.items():
        with case(width):
            tab.set_viewport_size({"width": width, "height": height})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate(CUT) == []


def test_search_finds_words_fields_and_numbers(tab: Any, site: Path) -> None:
    tab.goto((site / "index.html").as_uri())
    ids_by_words = {
        "deepseek": ["deepseek-v3", "kimi-k2", "deepseek-v4.1-flash"],  # the sentence of Kimi K2 names it
        "mixer.kind=latent": ["deepseek-v3", "kimi-k2"],
        "layers[*].mixer.kind=mamba2": ["nemotron-3-nano-30b-a3b"],
        "parameters>7e11": ["kimi-k2"],
        "kind=window": ["gemma-3-27b"],
        "num_experts<300 num_experts>200": ["deepseek-v3"],
        "nothing of the kind": [],
    }
    for words, ids in ids_by_words.items():
        with case(words):
            tab.fill("input[type=search]", words)
            assert tab.eval_on_selector_all(".cards li:not([hidden])", "all => all.map(one => one.dataset.id)") == ids
            assert tab.inner_text(".count") == f"{len(ids)} of {len(FEW)}"
    tab.fill("input[type=search]", "kind=latent")
    tab.reload()  # the address keeps the search
    assert tab.inner_text(".count") == f"2 of {len(FEW)}"


def test_the_slider_shows_state_and_time_and_a_card_its_ancestor(tab: Any, site: Path) -> None:
    tab.goto((site / "index.html").as_uri())
    tab.click("text=Kimi K2")
    tab.wait_for_selector(".slider:not([hidden])")
    shown = []
    for place in (0, 500, 1000):
        tab.eval_on_selector(
            ".slider input", "(one, place) => { one.value = place; one.dispatchEvent(new Event('input')) }", place
        )
        shown.append([tab.inner_text(f".slider .{name}") for name in ("length", "state", "time")])
    assert shown[0] == ["128", "8.58 MiB", "18.9 ms"]
    assert shown[2][:2] == ["131,072", "8.58 GiB"]
    tab.click("#changes h2 a")
    tab.wait_for_selector("text=DeepSeek V3")
    assert tab.url.endswith("deepseek-v3.html")


def test_what_changed_from_llama_3_to_deepseek_v3_to_kimi_k2_is_three_clicks(tab: Any, site: Path) -> None:
    index = (site / "index.html").as_uri()
    tab.goto(index)
    assert tab.locator(".compare").is_hidden()
    for name in ("Llama 3 8B", "DeepSeek V3", "Kimi K2"):
        tab.get_by_role("button", name=f"compare {name}", exact=True).click()
    rows = {
        field.replace("\u200b", ""): values
        for field, *values in tab.eval_on_selector_all(
            ".compare tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
    }
    assert rows[""] == ["Llama 3 8B", "DeepSeek V3", "Kimi K2"]
    assert rows["mixer.kind"] == ["attention", "latent", "latent"]
    assert rows["mixer.num_heads"] == ["32", "128", "64"]
    assert rows["feedforward.num_experts"] == ["–", "256", "384"]
    assert rows["active"] == ["8,030,261,248", "37,552,282,624", "32,861,477,888"]
    assert rows["state"] == ["128 KiB", "68.6 KiB", "68.6 KiB"]
    assert not {"final_norm.kind", "mixer.value_norm.kind"} & rows.keys()  # the same in all three, or none
    changed = tab.eval_on_selector_all(".compare .changed", "cells => cells.map(cell => cell.textContent)")
    assert "384" in changed and changed.count("latent") == 1
    assert tab.inner_text(".compare code") == "archetype cost llama-3-8b deepseek-v3 kimi-k2 --compare"
    tab.reload()  # the address keeps the comparison, and a card has it for its ancestors
    assert tab.locator(".compare thead th").all_inner_texts()[1:] == rows[""]
    tab.get_by_role("button", name="close").click()
    assert tab.url == index and tab.locator(".compare").is_hidden()
    tab.goto((site / "kimi-k2.html").as_uri())
    tab.click("text=Field by field")
    assert tab.locator(".compare thead th").all_inner_texts()[1:] == rows[""][1:]
