"""Outside clients of `archetype serve`, each in an environment of its own, over real sockets: `make clients`."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import archetype
from archetype.api.language_model import LanguageModel
from tests.conftest import SHARED
from tests.helpers import forked
from tests.helpers.serving import TEMPLATE, Served
from tests.integration.test_serve import no_network, tiny
from tests.integration.test_serve_limits import port_of

__all__ = ["no_network"]  # the fixture, for this file too

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".venv-clients"
KEY, MODEL, PROMPT = "secret", "story", "Once upon a time"
CHOICES = {"type": "object", "properties": {"mood": {"enum": ["glad", "sad"]}}, "required": ["mood"]}
COMPACT = {"x-guidance": {"whitespace_flexible": False}}  # a small model would write spaces to the end
MESSAGES = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Tell me a story"}]
LONG: dict[str, Any] = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}  # of which a client reads the beginning
Questions = {
    "key": KEY, "model": MODEL, "prompt": PROMPT, "messages": MESSAGES, "too_long": "and " * 2000, "long": LONG,
    "schema": CHOICES | COMPACT | {"additionalProperties": False},
}  # fmt: skip


class Client(NamedTuple):
    """A client: the packages of its environment, the program that asks by it, and what its errors are.

    A program of Node has no packages here: `tests/clients/node/package-lock.json` says what they are.
    """

    packages: tuple[str, ...]
    program: str
    too_long: list[Any]
    unknown_model: list[Any]
    wrong_key: list[Any]


OPENAI_ERRORS: tuple[list[Any], ...] = (
    ["BadRequestError", 400, "context_length_exceeded"],
    ["NotFoundError", 404, "model_not_found"],
    ["AuthenticationError", 401, "invalid_api_key"],
)
LITELLM_ERRORS: tuple[list[Any], ...] = (
    ["ContextWindowExceededError", 400], ["NotFoundError", 404], ["AuthenticationError", 401],
)  # fmt: skip
LANGCHAIN_ERRORS: tuple[list[Any], ...] = (
    ["OpenAIInvalidRequestError", 400, "context_length_exceeded"],
    ["OpenAIModelNotFoundError", 404, "model_not_found"],
    ["OpenAIAuthenticationError", 401, "invalid_api_key"],
)
CLIENTS = {
    "openai": Client(("openai>=3",), "openai_python.py", *OPENAI_ERRORS),
    "openai-1": Client(("openai<2",), "openai_python.py", *OPENAI_ERRORS),
    "langchain": Client(("langchain-openai>=1",), "langchain.py", *LANGCHAIN_ERRORS),
    "litellm": Client(("litellm>=1.100",), "with_litellm.py", *LITELLM_ERRORS),
    "node": Client((), "node/client.mjs", *OPENAI_ERRORS),
}


def command_of(name: str) -> list[str | Path]:
    """The program of a client; its environment is made where there is none, or one of other packages."""
    client = CLIENTS[name]
    program = HERE / client.program
    if not client.packages:
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            pytest.skip("needs Node and npm")
        lock = program.with_name("package-lock.json")
        installed = program.with_name("node_modules") / ".package-lock.json"
        if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
            subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=program.parent, check=True)
        return [node, program]
    environment, packages = ENVIRONMENTS / name, "\n".join(client.packages)
    installed = environment / "installed.txt"
    if not installed.is_file() or installed.read_text() != packages:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", *client.packages], check=True)
        installed.write_text(packages)
    return [environment / "bin" / "python", program]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model: one that tells stories where its weights are present, or one of random weights."""
    if (stories := SHARED / "data" / "stories260K").is_dir():
        return stories
    folder = tmp_path_factory.mktemp("served") / "model"
    tiny("llama-tiny", "vocab_size=257", "context_length=512").save(folder)
    return folder


@pytest.fixture(scope="module")
def lm(folder: Path) -> LanguageModel:
    """The same model in this process."""
    return archetype.load(folder, dtype="float64")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`archetype serve` in a process of its own."""
    place = tmp_path_factory.mktemp("server")
    (place / "template.jinja").write_text(TEMPLATE)
    options = ["--port", "0", "--api-key", KEY, "--dtype", "float64", "--chat-template", str(place / "template.jinja")]
    with (place / "output").open("w+b") as output:
        command = ["archetype", "serve", f"{MODEL}={folder}", *options, "--generation-config", "none"]
        process = forked.start(command, place, dict(os.environ), output)
        try:
            yield Served(None, None, port_of(place / "output", process))  # type: ignore[arg-type]
        finally:
            process.kill()
            process.wait()


def number(served: Served, name: str) -> float:
    """One of the server's numbers."""
    text = served.call("/metrics", authorization=f"Bearer {KEY}").body.decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_what_the_model_says(name: str, server: Served, lm: LanguageModel) -> None:
    pytest.importorskip("llguidance")
    client, command = CLIENTS[name], command_of(name)
    questions = json.dumps(Questions | {"url": server.url})
    before = number(server, "archetype_generated_tokens_total")
    done = subprocess.run(command, input=questions, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)

    def continuation(prompt: str | list[int], count: int) -> str:
        return lm.engine().submit(prompt, temperature=0.0, max_new_tokens=count).result()

    rendered = server.call("/v1/chat/completions/render", {"messages": MESSAGES}, authorization=f"Bearer {KEY}").json

    assert answers["models"] == [MODEL]
    assert answers["text"] == PROMPT + continuation(PROMPT, 8)
    [scores] = lm.engine().score([PROMPT])
    assert answers["logprobs"][0] is None and len(answers["logprobs"]) == len(scores) + 8
    assert answers["logprobs"][1 : len(scores)] == pytest.approx([score.logprob for score in scores if score])
    assert "".join(answers["chat"]) == continuation(rendered["token_ids"], 12) and len(answers["chat"]) > 3
    if "response" in answers:  # of clients that ask /v1/responses
        assert "".join(answers["response"]) == "".join(answers["chat"]) and len(answers["response"]) > 3
    assert json.loads(answers["json"])["mood"] in ("glad", "sad")
    assert answers["embedding"] == pytest.approx(lm.embed([PROMPT])[0].tolist(), abs=1e-6)
    errors = {"too long": client.too_long, "model": client.unknown_model, "key": client.wrong_key}
    assert answers["refused"] == errors
    until = time.monotonic() + 60
    while number(server, "archetype_requests_running") and time.monotonic() < until:
        time.sleep(0.01)
    assert number(server, "archetype_generated_tokens_total") - before < LONG["max_tokens"], "it left, and was served"
