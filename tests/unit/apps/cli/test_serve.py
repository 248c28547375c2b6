"""The lines with which `archetype serve` starts, and the browser that it opens."""

import json
import webbrowser
from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.apps.cli.serve import addresses, open_browser
from archetype.apps.serve import models, page, server
from archetype.apps.serve.models import ModelOptions, Models
from archetype.errors import ArchetypeError
from archetype.models.decoder.module import Decoder
from archetype.weights.packed import is_packed
from tests.helpers.kernels import kernels

HOW = "run `make page` in a checkout (wheels have it)"


@pytest.fixture(autouse=True)
def starts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says that it has started, and ends."""
    monkeypatch.setattr(server, "serve", lambda app, listening, grace, tell: (listening.close(), tell()))
    monkeypatch.delenv("ARCHETYPE_API_KEY", raising=False)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(page, "FOLDER", tmp_path)


def lines(*arguments: str) -> list[str]:
    """What `archetype serve` prints, all of it on standard error, with P for the port that is free."""
    result = CliRunner().invoke(app, ["serve", *arguments, "--port", "0"], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, "")
    port = result.stderr.rpartition(":")[2].partition("/")[0]
    assert port.isdecimal() and port != "0"
    return result.stderr.replace(f":{port}/", ":P/").splitlines()


@pytest.mark.usefixtures("built")
def test_the_address_of_the_web_ui_comes_first_then_the_apis() -> None:
    assert lines() == [
        "archetype: the example model; web UI at http://127.0.0.1:P/", "archetype: API at http://127.0.0.1:P/v1",
    ]  # fmt: skip
    warning = "archetype: without --api-key anyone who can reach this machine can use its models"
    everywhere = [
        "archetype: the example model; web UI at http://127.0.0.1:P/",
        "archetype: API at http://0.0.0.0:P/v1",
    ]
    assert lines("--host", "0.0.0.0") == [warning, *everywhere]
    assert lines("--host", "0.0.0.0", "--api-key", "k") == everywhere


@pytest.mark.usefixtures("built")
def test_a_program_reads_the_addresses_from_one_line() -> None:
    result = CliRunner().invoke(app, ["serve", "--json", "--port", "0"], catch_exceptions=False)
    about = json.loads(result.stdout)
    assert about.keys() == {"api", "web_ui", "models"} and len(about["models"]) == 1 and result.stdout.count("\n") == 1
    assert f"archetype: API at {about['api']}\n" in result.stderr and f"web UI at {about['web_ui']}\n" in result.stderr


def test_models_are_loaded_as_the_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernels("native")
    options = list[ModelOptions]()
    monkeypatch.setattr(models, "Models", lambda sources, one: [options.append(one), Models(sources, one)][1])
    model = archetype.build("llama-tiny").eval()
    LanguageModel(model.spec, model).save(tmp_path / "model")
    for flags in ((), ("--deterministic", "--dtype", "bfloat16", "--weights", "int8")):
        lines(str(tmp_path / "model"), *flags)
        opened = options[-1].open(str(tmp_path / "model")).model
        assert isinstance(opened, Decoder)
        assert opened.is_deterministic == is_packed(opened) == bool(flags)


def test_addresses_of_ipv6_are_in_brackets_and_a_browser_gets_one_that_it_can_open() -> None:
    assert addresses("::1", 80) == ("http://[::1]:80/", "http://[::1]:80/v1")
    assert addresses("::", 80) == ("http://[::1]:80/", "http://[::]:80/v1")
    assert addresses("example.org", 80) == ("http://example.org:80/", "http://example.org:80/v1")


def test_without_the_web_ui_a_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path / "page")
    assert lines() == [
        f"archetype: the example model; the web UI is not built: {HOW}", "archetype: API at http://127.0.0.1:P/v1"
    ]  # fmt: skip
    refused = CliRunner().invoke(app, ["serve", "--open", "--port", "0"])
    assert isinstance(refused.exception, ArchetypeError)
    assert str(refused.exception) == f"--open: the web UI is not built; {HOW}"


@pytest.mark.usefixtures("built")
def test_a_browser_is_opened_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, done = list[str](), Event()

    def open_page(address: str) -> bool:
        opened.append(address)
        done.set()
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    lines()
    assert not opened
    lines("--open", "--host", "0.0.0.0")
    assert done.wait(10) and len(opened) == 1 and opened[0].startswith("http://127.0.0.1:")


def test_where_there_is_no_browser_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(address: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    for none in (lambda address: False, fails):
        monkeypatch.setattr(webbrowser, "open", none)
        open_browser("http://127.0.0.1:80/")
        expected = "archetype: --open: found no browser; open http://127.0.0.1:80/ in one\n"
        assert capsys.readouterr().err == expected
