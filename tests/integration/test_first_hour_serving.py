"""The first hour with `archetype serve`: a run asked by OpenAI's client as README and the guide say, and mistakes."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import forked
from tests.integration.conftest import Run
from tests.integration.test_serve import no_network

__all__ = ["no_network"]  # the fixture, for this file too
ASKED: Any = [{"role": "user", "content": "Hi"}]


def test_a_run_is_served(run_directory: Path, tmp_path: Path) -> None:
    import openai  # here, as it takes a second

    log = tmp_path / "log"
    command = ["archetype", "serve", f"mine={run_directory}", "--port", "0", "--api-key", "secret"]
    with log.open("wb") as output:
        process = forked.start([*command, "--chat-template", "chatml"], tmp_path, dict(os.environ), output)
    try:
        while not (url := re.search(r"API at (\S+)\n", log.read_text())) and process.running():
            time.sleep(0.05)
        assert url, log.read_text()
        with openai.OpenAI(base_url=url[1], api_key="secret", max_retries=0) as client:
            ask(client)
        with openai.OpenAI(base_url=url[1], api_key="no", max_retries=0) as client:
            assert "Incorrect API key" in refusal(client.models.list)
        process.kill(signal.SIGTERM)
        assert process.wait() == 0 and log.read_text().startswith("archetype: mine on cpu")
    finally:
        process.kill()


def ask(client: Any) -> None:
    """Everything that the guide's table has for a decoder, streamed and whole, and what is refused."""
    greedy = {"model": "mine", "max_tokens": 6, "temperature": 0}
    assert [model.id for model in client.models.list()] == ["mine"]
    completed = client.completions.create(prompt="json", **greedy).choices[0].text
    parts = client.completions.create(prompt="json", stream=True, **greedy)
    assert completed == "".join(part.choices[0].text for part in parts) and len(completed) == 6
    answer = client.chat.completions.create(messages=ASKED, **greedy).choices[0].message.content
    chunks = client.chat.completions.create(messages=ASKED, stream=True, **greedy)
    assert answer == "".join(chunk.choices[0].delta.content or "" for chunk in chunks) and len(answer) == 6
    asked = {"model": "mine", "input": "Hi", "temperature": 0, "max_output_tokens": 6}
    response = client.responses.create(**asked)
    assert response.output_text == answer and response.status == "incomplete"
    kinds = [event.type for event in client.responses.create(**asked, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")
    vectors = [row.embedding for row in client.embeddings.create(model="mine", input=["a", "b"]).data]
    assert len(vectors) == 2 and vectors[0] != vectors[1]

    create, images = client.chat.completions.create, client.images.generate
    assert "no served model is named 'gpt-4'; use one of mine" in refusal(create, model="gpt-4", messages=ASKED)
    assert "temperature: 3 is too large" in refusal(create, **(greedy | {"temperature": 3}), messages=ASKED)
    assert "context length is" in refusal(create, **greedy, messages=[{"role": "user", "content": "a" * 9999}])
    assert "topk: is not a known parameter; did you mean top_k?" in refusal(
        create, **greedy, messages=ASKED, extra_body={"topk": 3}
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "chat template does not read tools" in refusal(create, **greedy, messages=ASKED, tools=[tool])
    unknown = refusal(images, prompt="a cat").partition("use one of ")[2]
    paths = unknown.partition('"')[0].split(", ")
    assert len(paths) == len({*paths}) and "/v1/responses" in paths
    assert not [path for path in paths if path.startswith("/api/")]  # what the web UI asks


def refusal(call: Callable[..., Any], **fields: Any) -> str:
    """The body with which the server refuses a request."""
    import openai

    with pytest.raises(openai.APIStatusError) as refused:
        call(**fields)
    assert 400 <= refused.value.status_code < 500
    return json.dumps(refused.value.body)


def test_what_cannot_be_served_is_one_line(run: Run, run_directory: Path, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(run("set", "llama-tiny", "name=own")[0])
    for words, message in (
        ((tmp_path / "none",), "there is no such folder; pass a run directory, a Hugging Face folder or a GGUF file"),
        ((text_file,), "is neither a folder nor a GGUF file; pass a run directory"),
        ((tmp_path / "spec.yaml",), "is a specification, which has no weights; train it: archetype train TEXT --spec"),
        (("llama-tiny",), "is a preset, which has no weights"),
        (
            (run_directory, "--api-key", ""),
            "--api-key: is empty; pass a key, or remove --api-key to serve without authentication",
        ),
        ((run_directory, "--alias", "a=b"), "--alias: no served model is named 'b'; use the name of a MODEL"),
        ((run_directory, run_directory), "MODEL: two models have the same name"),
        ((run_directory, "--chat-template", "nope"), "nope: is neither a file nor a known chat template; use one of"),
    ):  # fmt: skip
        told = run("serve", *words, "--port", "0", status=2)[1]
        assert message in told and told.count("\n") == 1
