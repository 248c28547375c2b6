"""The page in a browser: numbers equal Python's, nothing runs that should not, and everything works by keyboard."""

import json
import re
from collections.abc import Callable
from math import exp
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from archetype import cost_report, draw, families, spec
from archetype.apps.serve.models import ModelOptions, Models
from archetype.apps.serve.page import FOLDER
from archetype.apps.serve.positions import positions
from archetype.apps.serve.recipes import RecipeRequest, recipe_of
from archetype.apps.serve.specs import LengthRequest
from archetype.spec import to_yaml
from benchmarks import pictures
from tests.helpers.cases import case
from tests.helpers.documents import ROOT
from tests.helpers.serving import Served
from tests.page.browser import Page
from tests.page.conftest import shown
from tests.unit.api.test_extension import linear_attention, registries_as_before  # noqa: F401

FIRST_SCREEN = 150_000  # bytes


@shown("t5-tiny", "mamba-tiny", "vit-tiny")
def test_every_screen_for_every_kind_of_model(page: Page, server: Served, names: tuple[str, ...]) -> None:
    for name in names:
        report = cost_report(families.preset(name))
        total = f"{report.parameters['total']:,}"
        page.open(f"spec?spec=model:{name}&model={name}")
        page.tab.wait_for_selector(f'[data-number=parameters][title="{total}"]')
        if report.state["bytes"]:
            state = page.tab.get_attribute("[data-number=state]", "title")
            assert state == f"{report.state['bytes_per_token']:,}", name
        page.open(f"architecture?spec=model:{name}&model={name}&dtype=float32")
        page.tab.wait_for_selector(f"[data-number=parameters]:text-is('{total}')")
        boxes = page.tab.locator("rect.box")
        assert boxes.count() == len({box.id for box in drawn(name)}), name
        page.open(f"position?spec=model:{name}&model={name}")
        check_positions(page, name)
        write(page, name, server)
        page.check()


def drawn(name: str) -> Any:
    return draw(families.preset(name), aspect="3:2").scene.boxes  # as the screen asks for on a laptop


def check_positions(page: Page, name: str) -> None:
    """The numbers of the screen Position."""
    model = families.preset(name)
    answer = positions(Models([], ModelOptions(open=lambda place: None)), LengthRequest(preset=name))  # type: ignore[arg-type,return-value]
    page.tab.wait_for_selector("main[aria-label=Position] .grid")
    if max(answer["state"]["bytes"]):
        page.tab.wait_for_selector(f"[data-number=state-per-token]:text-is('{answer['state']['per_token']:,}')")
    pairs = [layer["pattern"]["pairs"] for layer in answer["layers"] if layer["pattern"]]
    if pairs:
        page.tab.wait_for_selector(f"[data-number=pairs]:text-is('{pairs[0]:,}')")
        assert page.tab.locator("[data-number=pairs]").all_inner_texts() == [f"{number:,}" for number in pairs]
    if isinstance(model, spec.Decoder) and answer["layers"][0]["position"]:
        position = answer["layers"][0]["position"]
        assert page.text("[data-number=theta]") == f"{position['theta']:,.0f}"


def write(page: Page, name: str, server: Served) -> None:
    """Ask the model for what it can do, and see that the screen shows what the server answers."""
    tab, kind = page.tab, families.preset(name).kind
    settings = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    page.open(
        f"write?model={name}&text=" + ("a [MASK] b" if kind == "encoder" else f"Once&sampling={json.dumps(settings)}")
    )
    if kind == "vision_encoder":
        tab.click("text=Use an example")
        tab.wait_for_selector("[data-class]")
        shares = [float(text.rstrip("%")) for text in tab.locator("[data-class]").all_inner_texts()]
        assert sum(shares) == pytest.approx(100, abs=0.6) and shares == sorted(shares, reverse=True)
    elif kind == "encoder":
        tab.click("button:text-is('Predict')")
        tab.wait_for_selector("ol li")
        text = tab.input_value("textarea")
        slots = server.call("/api/fill", {"model": name, "text": text, "top": 10}).json["slots"]
        shown = tab.locator("ol .share").all_inner_texts()
        assert shown == [f"{100 * one['probability']:.1f}%" for slot in slots for one in slot]
    else:
        tab.wait_for_selector("textarea:not([rows='2'])")
        tab.keyboard.press("Control+Enter")
        tab.wait_for_selector("text=ended at the token limit")
        body = {"model": name, "prompt": "Once", "logprobs": 20, "echo": kind != "encoder_decoder"} | settings
        choice = server.call("/v1/completions", body).json["choices"][0]
        assert "".join(texts(page)) == choice["text"], name
        tab.locator(".tokens").focus()
        for key in ("End", "ArrowLeft", "ArrowLeft"):
            tab.keyboard.press(key)
        best = sorted(choice["logprobs"]["top_logprobs"][-3].values(), reverse=True)[:10]
        tab.wait_for_selector("section[aria-label=Alternatives] .share")
        shares = tab.locator("section[aria-label=Alternatives] .share").all_inner_texts()
        assert shares == [percent(value) for value in best], name


def texts(page: Page) -> list[str]:
    """The tokens of the text that is shown."""
    return list(page.tab.locator(".tokens span[data-index]").all_text_contents())


def percent(logprob: float) -> str:
    return f"{100 * exp(logprob):.1f}%"


@pytest.mark.parametrize(
    ("screen", "ready"),
    [("architecture?spec=preset:gpt2", "rect.box"), ("home?model=llama-tiny", "[data-about]")],
    ids=["architecture", "home"],
)
def test_the_first_screen_is_small(page: Page, screen: str, ready: str) -> None:
    page.open(screen)
    page.tab.wait_for_selector(ready)
    script = "performance.getEntriesByType('resource').map(one => [one.name, one.encodedBodySize])"
    assets = {url: size for url, size in page.tab.evaluate(script) if "/assets/" in url}
    assert any(url.endswith(".js") for url in assets) and 0 < sum(assets.values()) <= FIRST_SCREEN
    assert not any("codemirror" in url for url in assets)
    packed = [file for file in FOLDER.joinpath("assets").iterdir() if file.suffix in (".js", ".css")]
    assert all(file.with_name(f"{file.name}.gz").is_file() for file in packed)


@shown("t5-tiny", "megabyte-tiny")
def test_home_says_what_a_model_is_and_runs_an_example(page: Page, server: Served, names: tuple[str, ...]) -> None:
    tab = page.tab
    for name in names:
        with case(name):
            page.open(f"home?model={name}")
            tab.wait_for_selector(f"h1:text-is('{name}')")
            total = cost_report(families.preset(name)).parameters["total"]
            size = f"{total:,}" if total < 100_000 else f"{total / 1000:.0f} K"
            tab.wait_for_selector(f"[data-about]:has-text('{size} parameters')")
            tab.wait_for_selector("section[aria-busy=false] [data-written], section[aria-busy=false] [data-answer]")
            task = tab.get_attribute("[data-task]", "data-task")
            if task in ("write", "translate"):
                prompt = tab.input_value("section[data-task] input")
                body = {"model": name, "prompt": prompt, "max_tokens": 48, "temperature": 0.7, "seed": 1}
                text = server.call("/v1/completions", body).json["choices"][0]["text"]
                echo = prompt if task == "write" else ""
                assert tab.locator("[data-written]").text_content() == echo + text
            elif task == "fill":
                body = {"model": name, "text": tab.input_value("section[data-task] input"), "top": 5}
                slots = server.call("/api/fill", body).json["slots"]
                assert texts_of(page, "[data-answer]") == [f"{100 * one['probability']:.1f}%" for one in slots[0]]
            else:
                assert task == "picture" and len(texts_of(page, "[data-answer]")) == 5
    links = tab.locator("nav[aria-label='Next steps'] a")
    assert links.count() == 5
    assert [link.get_attribute("href").split("?")[0] for link in links.all()] == [
        "#/write", "#/inside", "#/spec", "#/architecture", "/gallery/"
    ]  # fmt: skip
    focus(page, lambda: tab.evaluate("document.activeElement.innerText").startswith("Look inside"))
    tab.keyboard.press("Enter")
    tab.wait_for_selector("[data-view=token] [data-norm]")


def test_a_model_is_picked_by_search_and_keys(page: Page) -> None:
    tab = page.tab
    page.open("architecture?spec=preset:gpt2-tiny")
    tab.wait_for_selector("rect.box")
    tab.click("button:has-text('gpt2-tiny')")
    assert tab.locator("[role=option]").count() > 200
    tab.keyboard.type("mamba")
    tab.wait_for_function("document.querySelectorAll('[role=option]').length < 20")
    assert page.accessibility() == []
    tab.keyboard.type(" 1.4")
    tab.wait_for_function("document.querySelectorAll('[role=option]').length === 1")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("h2:text-is('mamba-1.4b'), [data-number=parameters]")
    page.address("spec=preset%3Amamba-1.4b")
    tab.click("button:has-text('mamba-1.4b')")
    tab.keyboard.type("llama-3")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        tab.keyboard.press(key)
    marked = tab.get_attribute(".marked", "data-option")
    tab.keyboard.press("Enter")
    page.address(f"spec={quote(str(marked), safe='')}")
    tab.click("button:has-text('llama-3')")
    tab.keyboard.type("no such model")
    tab.wait_for_selector("text=No model or family matches")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("[role=listbox]", state="detached")


def test_the_kv_cache_of_several_models_over_length_and_the_work_without_it(page: Page) -> None:
    names = ("llama-2-7b", "llama-3-8b", "mamba-130m")
    page.open("state?model=llama-tiny&specs=" + ",".join(f"preset:{name}" for name in names))
    for name in names:
        state = cost_report(families.preset(name)).state["bytes_per_token"]
        page.tab.wait_for_selector(
            f"[data-per-token='{name}']:text-is('{state >> 10 if state else 0} {'Ki' * bool(state)}B')"
        )
    report = cost_report(families.preset("llama-2-7b")).flops
    saved = round(report["prefill"] / report["decode"])
    page.tab.wait_for_selector(f"[data-saved] strong:text-is('{saved:,}')")
    assert page.accessibility() == []
    page.tab.click("button:has-text('another')")
    page.tab.keyboard.type("gpt2-xl")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("[data-per-token='gpt2-xl']")


SMALL_TEXT = """
() => [...document.querySelectorAll("svg text")].filter(one => one.textContent.trim())
  .map(one => [one.textContent, parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a])
  .filter(([, size]) => size < 8.99)
"""


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_text_in_figures_and_in_enlarged_diagrams_is_never_under_9_pixels(page: Page, width: int) -> None:
    page.tab.set_viewport_size({"width": width, "height": 800})
    for hash, ready in {
        "architecture?spec=preset:gpt2&zoom=4": "rect.box",
        "inside?model=llama-tiny&view=attention": "[data-map] canvas",
        "inside?model=llama-tiny&view=flow": "figure canvas", "position?spec=preset:t5-tiny": "canvas",
        "state?model=llama-tiny": "[data-saved]",
    }.items():  # fmt: skip
        page.open(hash)
        page.tab.wait_for_selector(ready, state="attached")
        assert page.tab.evaluate(SMALL_TEXT) == [], hash
        assert page.tab.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, hash


SLOW_ANSWERS = """
() => {
  const asked = window.fetch;
  window.fetch = async (...request) => {
    const answer = await asked(...request);
    if (String(request[0]).includes("/api/spec/evaluate")) await new Promise((resolve) => setTimeout(resolve, 400));
    return answer;
  };
}
"""


def test_an_answer_takes_nothing_back_that_was_typed_since_it_was_asked(page: Page) -> None:
    page.open("spec?spec=preset:gpt2-tiny")
    page.tab.evaluate(SLOW_ANSWERS)
    page.tab.wait_for_selector("[data-number=parameters]")
    line = page.tab.locator(".cm-line", has_text="name: gpt2-tiny").first
    line.click()
    page.tab.keyboard.press("End")
    for milliseconds in (450, 510):  # when the answer to the first letter is about to come
        page.tab.keyboard.press("a")
        page.tab.wait_for_timeout(milliseconds)
        page.tab.keyboard.press("b")
        page.tab.wait_for_timeout(1000)
    assert line.inner_text() == "name: gpt2-tiny" + 2 * "ab"


@pytest.mark.parametrize(
    ("dark", "odd"),
    [(False, {1}), (True, {0}), *(pytest.param(dark, {0, 1}, marks=pytest.mark.slow) for dark in (False, True))],
    ids=["light", "dark", "all light", "all dark"],
)
def test_axe_finds_nothing(page: Page, dark: bool, odd: set[int]) -> None:
    """On wide light screens and on narrow dark ones: each screen is one of them in every run, and both in the soak."""
    page.tab.emulate_media(color_scheme="dark" if dark else "light")
    page.tab.set_viewport_size({"width": 360 if dark else 1440, "height": 800})
    ready = {
        "home?model=llama-tiny": "[data-about]",
        "inside?model=llama-tiny&view=token": "[data-norm]",
        "state?model=llama-tiny": "[data-saved]",
        "spec?model=llama-tiny&spec=preset:gpt2": ".cm-content",
        "spec?view=form&spec=preset:mixtral-8x7b": "fieldset input[type=radio]",
        "architecture?spec=preset:gpt2-tiny&against=preset:llama-tiny": "rect.box",
        "position?spec=preset:t5-tiny": "canvas",
        "transplant?model=llama-tiny&spec=preset:mixtral-tiny&text=a cat": "[data-number=kl]",
        "write?model=llama-tiny": "textarea",
        "write?model=llama-tiny&mode=chat": ".turn",
        "write?model=bert-tiny": "textarea",
        "write?model=vit-tiny": "input[type=file]",
    }
    for number, (hash, selector) in enumerate(ready.items()):
        page.open(hash)
        page.tab.wait_for_selector(selector, state="attached")
        assert number % 2 not in odd or page.accessibility() == [], hash
        wide = page.tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{hash} scrolls sideways by {wide} pixels"


def test_a_specification_is_edited_and_read_by_keyboard_alone(page: Page) -> None:
    tab = page.tab
    page.open("spec?spec=preset:llama-3-8b&view=form")
    tab.wait_for_selector("[data-number=state][title='131,072']")
    focus(page, lambda: tab.evaluate("document.activeElement.labels?.[0]?.innerText ?? ''") == "num kv heads")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("2")
    tab.keyboard.press("Tab")
    tab.wait_for_selector("[data-number=state][title='32,768']")
    assert "num_kv_heads" in page.text("section[aria-label='Changes from the start']")
    address = page.address("spec=yaml")
    focus(page, lambda: tab.evaluate("document.activeElement.innerText") == "Architecture")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("rect.box")
    focus(page, lambda: tab.evaluate("document.activeElement.tagName") == "rect")
    tab.keyboard.press("ArrowUp")
    tab.wait_for_selector("rect.selected")
    assert re.search(r"\d", page.text("section[aria-label='Selected part']"))
    tab.goto(address)
    tab.reload()
    tab.wait_for_selector("[data-number=state][title='32,768']")  # the address holds the whole state


def focus(page: Page, reached: Callable[[], bool]) -> None:
    """Press Tab until something has the focus."""
    for _ in range(120):
        page.tab.keyboard.press("Tab")
        if reached():
            return
    pytest.fail("Tab does not lead there")


def test_a_part_from_outside_is_shown_as_all_others(page: Page) -> None:
    model = linear_attention()
    packed = pack(page, to_yaml(model))
    for screen, selector in (("spec", "[data-number=parameters]"), ("architecture", "[data-number=parameters]")):
        page.open(f"{screen}?spec=yaml:{packed}&length=16")
        total = f"{cost_report(model, length=16).parameters['total']:,}"
        shown = f"{selector}[title='{total}']" if screen == "spec" else f"{selector}:text-is('{total}')"
        page.tab.wait_for_selector(shown)
    page.open(f"position?spec=yaml:{packed}")
    page.tab.wait_for_selector("h2:text-is('gated_linear_attention')")


def pack(page: Page, source: str) -> str:
    """A text as the address holds it."""
    return str(page.tab.evaluate(
        """async (text) => { const stream = new Blob([text]).stream().pipeThrough(new CompressionStream('deflate-raw'));
        const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
        return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '') }""",
        source,
    ))  # fmt: skip


def test_mistakes_stand_at_their_line_and_are_undone(page: Page) -> None:
    tab = page.tab
    page.open("spec?spec=preset:llama-3-8b")
    tab.wait_for_selector(".cm-content")
    tab.click(".cm-line:has-text('num_kv_heads')")
    tab.keyboard.press("End")
    tab.keyboard.press("Backspace")
    tab.keyboard.type("5")
    tab.wait_for_selector("[role=alert]:has-text('num_kv_heads')")
    assert "line 16" in page.text("[role=alert]") and "divide" in page.text("[role=alert]")
    tab.wait_for_selector(".cm-lintRange-error")
    tab.click("text=Undo")
    tab.wait_for_selector("[role=alert]", state="detached")
    assert "num_kv_heads: 8" in tab.locator(".cm-content").inner_text()


def test_a_change_says_what_survives_and_how_far_predictions_move(page: Page, server: Served) -> None:
    tab, change = page.tab, "layers[*].mixer.num_kv_heads=1"
    body = {"model": "llama-tiny", "changes": [change], "text": "a cat, a cat"}
    page.open(f"transplant?model=llama-tiny&text={quote(body['text'])}")
    tab.wait_for_selector("text=Nothing has changed yet")
    tab.click("text=Fewer key heads")
    answer = server.call("/api/transplant", body | {"compare": True}).json
    proof, merged = answer["report"]["proof"], [taken["how"] for taken in answer["report"]["tensors"].values()]
    tab.wait_for_selector(f"[data-how=merged]:text-is('{merged.count('merged')}')")
    tab.wait_for_selector(f"[data-number=agreement]:text-is('{100 * proof['agreement']:.1f}%')")
    assert float(page.text("[data-number=kl]").removesuffix(" nats")) == pytest.approx(proof["divergence"], rel=0.01)
    assert "".join(tab.locator(".tokens span").all_text_contents()) == body["text"]
    shares = [f"{100 * share:.1f}%" for share in answer["rows"][0]["next"][-1]["after"]]
    assert tab.locator(".next td.number:last-child").all_inner_texts() == shares
    assert page.text("pre[aria-label=Command]").startswith("archetype transplant llama-tiny --spec ")
    tab.fill("section[aria-label=Change] input", "layers[0].mixer.num_hads=2")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("[role=alert]:has-text('num_hads')")
    tab.fill("section[aria-label=Change] input", "num_layers=1")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("text=layer 1 dropped")
    tab.click("text=Undo")
    tab.wait_for_selector("text=layer 1 dropped", state="detached")


def test_a_text_is_stopped_and_branches(page: Page) -> None:
    tab = page.tab
    page.open('write?model=llama-tiny&text=Once&sampling={"max_tokens":40,"ignore_eos":true,"seed":1}')
    tab.wait_for_selector("textarea")
    tab.keyboard.press("Control+Enter")
    tab.wait_for_selector("text=ended at the token limit")
    tokens = tab.locator(".tokens")
    tokens.focus()
    for _ in range(6):
        tab.keyboard.press("ArrowRight")
    page.address("token=5")
    before = texts(page)
    other = tab.locator("section[aria-label=Alternatives] button:not(.chosen):not([disabled])").first
    other.focus()
    tab.keyboard.press("Enter")
    script = """(former) => document.body.innerText.includes('ended at the token limit') &&
      (document.querySelector('.tokens [data-index="5"]')?.textContent ?? former) !== former"""
    tab.wait_for_function(script, arg=before[5])
    after = texts(page)
    assert after[:5] == before[:5] and after[5] != before[5]
    page.open('write?model=mamba-tiny&text=Once&sampling={"max_tokens":120,"ignore_eos":true}')
    tab.wait_for_selector("text=mamba-tiny · decoder")
    tab.keyboard.press("Control+Enter")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("[role=status]:has-text('stopped'), [role=status]:has-text('ended')")


def test_two_columns_write_the_same_prompt_by_the_same_seed(page: Page, server: Served) -> None:
    tab, settings = page.tab, {"max_tokens": 12, "ignore_eos": True, "temperature": 0.8}
    page.open(f"write?model=llama-tiny&text=Once&sampling={json.dumps(settings)}")
    tab.click("button:text-is('two columns')")
    tab.wait_for_selector("[data-column=Right]")
    page.address("beside=gpt2-tiny", "sampling2")  # the next model, with the same settings
    tab.fill(".seed input", "7")
    tab.keyboard.press("Tab")
    for names in (("llama-tiny", "gpt2-tiny"), ("llama-tiny", "llama-tiny")):
        tab.select_option("[data-column=Right] select", names[1])
        tab.keyboard.press("Control+Enter")
        for side, name in zip(("Left", "Right"), names, strict=True):
            body = {"model": name, "prompt": "Once", "echo": True, "seed": 7} | settings
            text = server.call("/v1/completions", body).json["choices"][0]["text"]
            script = "([side, text]) => document.querySelector(`[data-column=${side}] .tokens`).textContent === text"
            tab.wait_for_function(script, arg=[side, text])
    tab.wait_for_selector("[data-same='12']")
    tab.locator("[data-column=Left] .tokens").focus()
    tab.keyboard.press("End")
    shares = [texts_of(page, f"section[aria-label='{side} alternatives'] .share") for side in ("Left", "Right")]
    assert shares[0] == shares[1] and len(shares[0]) == 10
    tab.click("details.bar summary")  # what was read is set beside what can be read
    tab.wait_for_selector("[data-bandwidth]:not([data-bandwidth='0'])")
    bandwidth = int(tab.get_attribute("[data-bandwidth]", "data-bandwidth") or 0)
    assert float(page.text("[data-bandwidth]").split()[0]) == pytest.approx(bandwidth / 1e9, rel=0.01)
    assert page.accessibility() == []
    tab.click("details.bar summary")
    address = page.address("seed=7")
    tab.goto("about:blank")
    tab.goto(address)
    tab.wait_for_selector("[data-column=Right]")
    assert tab.input_value(".seed input") == "7" and tab.input_value("[data-column=Right] select") == "llama-tiny"
    tab.set_viewport_size({"width": 360, "height": 800})
    left, right = (tab.locator(f"[data-column={side}]").bounding_box() for side in ("Left", "Right"))
    assert right["y"] >= left["y"] + left["height"]
    assert tab.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


def texts_of(page: Page, selector: str) -> list[str]:
    return list(page.tab.locator(selector).all_inner_texts())


def test_a_specification_becomes_a_recipe(page: Page) -> None:
    tab = page.tab
    page.open("spec?spec=preset:gpt2-tiny")
    tab.click("button:text-is('Train this')")
    expected = recipe_of(Models([], ModelOptions(open=print)), RecipeRequest(preset="gpt2-tiny"))  # type: ignore[arg-type]
    tab.wait_for_selector(f"[data-number=steps]:text-is('{expected['steps']:,}')")
    assert tab.locator("pre[aria-label=Recipe]").text_content() == expected["recipe"]
    assert page.text("pre[aria-label=Command]") == expected["command"]
    with tab.expect_download() as download:
        tab.click("text=Download the recipe")
    assert download.value.suggested_filename == "gpt2-tiny.recipe.yaml"
    assert download.value.path().read_text(encoding="utf-8") == expected["recipe"]
    tab.select_option("section[aria-label='Train this'] select >> nth=0", "labelled_text")
    tab.wait_for_selector("code:text-is('examples.jsonl')")
    page.address("data=labelled_text", "train=true")
    assert page.accessibility() == []


def test_turns_of_a_chat_are_sent_stopped_edited_and_answered_again(page: Page, server: Served) -> None:
    tab, settings = page.tab, {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    page.open(f"write?model=llama-tiny&mode=chat&text=Hello&sampling={json.dumps(settings)}")
    tab.wait_for_selector("textarea[aria-label='Turn 1']")

    def answer(*turns: tuple[str, str]) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        body = {"model": "llama-tiny", "messages": messages} | settings
        return str(server.call("/v1/chat/completions", body).json["choices"][0]["message"]["content"])

    def shows(text: str) -> None:
        tab.wait_for_function("text => document.querySelector('.tokens')?.textContent === text", arg=text)
        tab.wait_for_selector("text=ended at the token limit")

    tab.keyboard.press("Control+Enter")
    first = answer(("user", "Hello"))
    shows(first)
    tab.fill("textarea[aria-label='Turn 3']", "More")  # send
    tab.click("button:text-is('Generate')")
    shows(answer(("user", "Hello"), ("assistant", first), ("user", "More")))
    tab.fill("textarea[aria-label='Turn 1']", "Good day")  # edit, and answer the first turn again
    tab.click(".turn.assistant >> nth=0 >> button:text-is('Regenerate')")
    edited = answer(("user", "Good day"))
    shows(edited)
    assert edited != first and tab.locator(".turn").count() == 3
    tab.click("text=Rendered prompt")
    messages = [{"role": "user", "content": "Good day"}, {"role": "assistant", "content": edited}]
    body = {"model": "llama-tiny", "messages": messages}
    rendered = server.call("/v1/chat/completions/render", body).json
    tab.wait_for_selector("pre[aria-label='Rendered prompt']")
    assert tab.locator("pre[aria-label='Rendered prompt']").text_content() == rendered["prompt"]
    assert page.accessibility() == []
    tab.route("**/v1/chat/completions", lambda route: None)  # an answer that does not come is stopped
    tab.click(".turn.assistant >> button:text-is('Regenerate')")
    tab.wait_for_selector("button:has-text('Stop')")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("[role=status]:has-text('stopped')")
    assert tab.locator("button:text-is('Generate')").is_enabled()


TEMPLATES = tuple(text.replace("RUN", "window.ran=1").replace("AWAY", "http://127.0.0.2/") for text in (
    "<script>RUN</script>", "<img src=x onerror=RUN>", "<svg onload=RUN>", "<iframe srcdoc='<script>parent.ran=1'>",
    "<body onload=RUN>", "<a href=javascript:RUN>x</a>",
    "'\"><img src=x onerror=RUN>", "</textarea><script>RUN</script>",
    "{@html '<img src=x onerror=RUN>'}", "<style>@import 'AWAY'</style>", "<link rel=stylesheet href=AWAY>",
    "<base href=AWAY>", "<math><mtext><img src=x onerror=RUN>", "<video><source onerror=RUN>",
    "<details open ontoggle=RUN>", "<meta http-equiv=refresh content='0;url=AWAY'>", "<object data=javascript:RUN>",
    "<template><img src=x onerror=RUN></template>", "<!--><img src=x onerror=RUN>-->", "&lt;img src=x onerror=RUN&gt;",
))  # fmt: skip
FRAMES = (
    "{}", "a {} b", "```html\n{}\n```", "[x]({})", "![x]({})", "`{}`", "**{}**", "\u202e{}", "<b>{}</b>", "{}\n{}"
)  # fmt: skip
PAYLOADS = [frame.replace("{}", template) for template in TEMPLATES for frame in FRAMES]


def test_what_a_model_writes_is_never_markup(page: Page) -> None:
    """As tokens, as alternatives, as an error, as names of specifications, and in the address."""
    assert len(PAYLOADS) == 200
    tab = page.tab

    def answer(route: Any) -> None:
        offset, events = 0, []
        for text in PAYLOADS:
            logprobs = {
                "tokens": [text], "token_logprobs": [-1.0], "top_logprobs": [{text: -1.0}], "text_offset": [offset]
            }  # fmt: skip
            offset += len(text)
            choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None, "token_ids": [1]}
            events.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
        events.append(f"data: {json.dumps({'error': {'message': PAYLOADS[0], 'code': None}})}\n\n")
        route.fulfill(status=200, content_type="text/event-stream", body="".join(events))

    tab.route("**/v1/completions", answer)
    page.open("write?model=llama-tiny&sampling={}&text=" + PAYLOADS[1].replace("&", "%26").replace("#", "%23"))
    tab.wait_for_selector("textarea")
    tab.keyboard.press("Control+Enter")
    tab.wait_for_selector(".problem")
    assert texts(page) == PAYLOADS
    assert page.text(".problem") == PAYLOADS[0]
    for number in range(0, 200, 37):
        tab.locator(f"[data-index='{number}']").click()
    names = tab.evaluate("[...document.querySelectorAll('main *')].map((one) => one.tagName)")
    assert not {"SCRIPT", "IMG", "IFRAME", "STYLE", "LINK", "BASE", "OBJECT", "META", "VIDEO"} & set(names)
    for number in range(0, 200, 20):
        page.open(f"spec?spec={json.dumps(PAYLOADS[number])}")
    source = families.preset("gpt2-tiny").replace(name=TEMPLATES[1]).dump()
    packed = pack(page, json.dumps(source))
    page.open(f"architecture?spec=yaml:{packed}")
    tab.wait_for_selector(f"h2:text-is({json.dumps(TEMPLATES[1])})")
    assert tab.evaluate("window.ran") is None


def test_the_screenshot_in_the_readme_is_what_its_script_draws(server: Served, browser: Any) -> None:
    """Compared small and in grey, so that fonts matter little; a screenshot of another specification differs more."""
    readme = (ROOT / "README.md").read_text()
    assert "page-hybrid.png" in readme and all(one in readme for one in pictures.HYBRID)
    drawn = outline(pictures.photograph(browser, "hybrid", pictures.README, scale=pictures.SCALE, port=server.port))
    saved, other = (outline(Image.open(pictures.DOCS / f"page-{name}.png")) for name in ("hybrid", "spec"))
    assert abs(drawn - saved).mean() < 2 < 4 < abs(drawn - other).mean()


def outline(picture: Image.Image) -> Any:
    """A screenshot without the header, as 140 x 85 pixels of grey."""
    wide = picture.convert("L").resize((1400, 900), Image.Resampling.BOX).crop((0, 46, 1400, 900))
    return np.asarray(wide.resize((140, 85), Image.Resampling.BOX), dtype=float)
