"""One server with tiny models of every kind, and one browser, for the tests of a file.

Not longer: while playwright is started, no other test of the process can run an event loop of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archetype import families, spec
from archetype.api.language_model import LanguageModel
from archetype.convert.image_processor import square_pictures
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.serving import TEMPLATE, Served, serving
from tests.helpers.weights import randomize
from tests.page.browser import WATCH, Page, chromium, missing

NAMES = (
    "llama-tiny", "gpt2-tiny", "bert-tiny", "t5-tiny", "deepseek-v2-tiny", "mixtral-tiny", "mamba-tiny", "lstm-tiny",
    "ngram-tiny", "megabyte-tiny", "vit-tiny", "gemma3-tiny",
)  # fmt: skip


def shown(*few: str) -> pytest.MarkDecorator:
    """Models that a test shows in every run, unlike each other in what is shown; all of them in the soak.

    The tests share the kinds among them: encoder-decoders, experts, state spaces, patches of bytes, and images.
    """
    every = pytest.param(NAMES, marks=pytest.mark.slow)
    return pytest.mark.parametrize("names", [few, every], ids=["unlike", "all"])


def tiny(name: str) -> LanguageModel:
    """A tiny preset with random weights, and with bytes as tokens; token 0 ends a text."""
    model = build(families.preset(name))
    randomize(model)
    model.requires_grad_(False)
    template = ChatTemplate(TEMPLATE, {}) if name == "llama-tiny" else None
    tokenizer = None
    if not isinstance(model.spec, spec.VisionEncoder):
        tokenizer = train_tokenizer("bytes", [], None)
        tokenizer.eos = (0,)
    shape = model.spec.image_shape
    pictures = square_pictures(*shape).contents() if shape else None
    return LanguageModel(model.spec, model, tokenizer, template=template, image_processor=pictures)


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The tests speak with the server of this machine; the browser notes every request to another."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of training runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of reports."""
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def server(runs: Path, reports: Path) -> Iterator[Served]:
    """Serves a model of every kind."""
    if missing():
        pytest.skip("needs a built page (make page), playwright, and a chromium")
    with serving({name: tiny(name) for name in NAMES}, runs=runs, reports=[reports]) as served:
        yield served


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Any]:
    """Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """A tab: to open one takes longer than most tests."""
    context = browser.new_context()
    context.add_init_script(WATCH)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(server: Served, tab: Any) -> Iterator[Page]:
    """The tab as a new one; nothing may have gone wrong in it."""
    tab.set_viewport_size({"width": 1440, "height": 900})
    page = Page(tab, server.port)
    yield page
    try:
        page.check()
    finally:
        page.leave()
