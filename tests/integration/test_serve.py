"""The HTTP API over real sockets: what clients send, and the shape of all that they get."""

import base64
import io
import json
import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter, ValidationError

import archetype
from archetype import LanguageModel
from archetype.apps.serve import page
from archetype.apps.serve.models import Source
from archetype.apps.serve.requests import CompletionRequest
from archetype.convert.image_processor import square_pictures
from archetype.generate import Sampling
from archetype.models.build import build
from archetype.spec import assign
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.examples import examples
from tests.helpers.serving import TEMPLATE, Served, serving
from tests.helpers.weights import randomize

if TYPE_CHECKING:
    import openai

PROMPT = "Once upon a time"
SENTENCES = {  # files of sentence-transformers: a prompt before each text, all of it lowercased and cut
    "modules.json": json.dumps([
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]).encode(),
    "1_Pooling/config.json": b'{"pooling_mode": "max"}',
    "sentence_bert_config.json": b'{"max_seq_length": 9, "do_lower_case": true}',
    "config_sentence_transformers.json": b'{"prompts": {"a": "ask: "}, "default_prompt_name": "a"}',
}  # fmt: skip


@cache
def tiny(preset: str, *changes: str, labels: tuple[str, ...] = ()) -> LanguageModel:
    """A preset of bytes with random weights, in float64; token 0 ends a text."""
    spec = assign(archetype.load_spec(preset), [*changes])
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    template = ChatTemplate(TEMPLATE, {"eos_token": "<end>"})
    model = randomize(build(spec, dtype=torch.float64), seed=5).eval()
    return LanguageModel(spec, model, tokenizer, labels=labels, template=template)  # type: ignore[arg-type]


def models() -> dict[str, LanguageModel]:
    """One of each kind."""
    bytes_ = "vocab_size=257"
    return {
        "llama": tiny("llama-tiny", bytes_),
        "bert": tiny("bert-tiny", bytes_),
        "classes": tiny("bert-tiny", bytes_, "head={kind: classification, num_classes: 3}", labels=("a", "b", "c")),
        "transformer": tiny("transformer-tiny", bytes_),
        "ending": replace(
            tiny("transformer-tiny", bytes_),
            sampling=Sampling.parse({"exponential_decay_length_penalty": [1, 9.0]}),
        ),
        "vit": classifier_of_pictures(),
        "mamba": tiny("mamba-tiny", bytes_),
        "five tokens": replace(tiny("llama-tiny", bytes_), sampling=Sampling.parse({"max_new_tokens": 5})),
        "24 tokens": replace(tiny("llama-tiny", bytes_), sampling=Sampling.parse({"max_length": 24})),
        "sentences": replace(tiny("bert-tiny", bytes_), sentence_files=SENTENCES),
    }


@cache
def picture_model() -> Any:
    return randomize(build(archetype.load_spec("vit-tiny")), seed=3).eval()


def classifier_of_pictures() -> LanguageModel:
    model = picture_model()
    return LanguageModel(model.spec, model, image_processor=square_pictures(*model.spec.image_shape).contents())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but this machine is connected to."""
    intact = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] == "127.0.0.1", address
        intact(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    all_models = models()
    sources = [Source(name, name, ("gpt-4",) if name == "llama" else ()) for name in all_models]
    with serving(all_models, sources=sources) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> "Iterator[openai.OpenAI]":
    import openai  # here, as it takes a second

    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def continuation(prompt: str | list[int], **sampling: Any) -> str:
    """What the model itself says."""
    return tiny("llama-tiny", "vocab_size=257").engine().submit(prompt, temperature=0.0, **sampling).result()


def test_openai_python_lists_models(client: "openai.OpenAI", server: Served) -> None:
    import openai

    listed = client.models.list().data
    assert [model.id for model in listed] == list(models())
    assert listed[0].model_dump()["max_model_len"] == 128 or listed[0].model_dump()["max_model_len"] > 0
    assert client.models.retrieve("gpt-4").id == "llama"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("lama")
    assert refused.value.code == "model_not_found" and "did you mean llama?" in refused.value.message
    assert refused.value.request_id is not None


def test_openai_python_completes(client: "openai.OpenAI") -> None:
    whole = client.completions.create(model="llama", prompt=PROMPT, max_tokens=24, temperature=0)
    [choice] = whole.choices
    assert choice.text == continuation(PROMPT, max_new_tokens=24)
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    assert whole.usage is not None and whole.usage.prompt_tokens == len(PROMPT)
    assert whole.system_fingerprint is not None and whole.system_fingerprint.startswith("fp_")
    chunks = list(
        client.completions.create(
            model="llama", prompt=[PROMPT, "Tom"], max_tokens=24, temperature=0, stream=True, n=2,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    texts = [""] * 4
    for chunk in chunks[:-1]:
        assert chunk.usage is None and chunk.choices
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    tom = continuation("Tom", max_new_tokens=24)
    assert texts == [whole.choices[0].text, whole.choices[0].text, tom, tom]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1


def test_openai_python_chats(client: "openai.OpenAI", server: Served) -> None:
    messages: Any = [
        {"role": "developer", "content": "Short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
    ]
    prompt = "system: Short.\nuser: Hi\nassistant: "
    expected = continuation(prompt, max_new_tokens=12)
    answer = client.chat.completions.create(model="llama", messages=messages, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content == expected
    parts = client.chat.completions.create(
        model="llama", messages=messages, max_completion_tokens=12, temperature=0, stream=True, logprobs=True
    )
    deltas = [chunk.choices[0] for chunk in parts]
    assert deltas[0].delta.role == "assistant" and deltas[0].delta.content == ""
    assert "".join(delta.delta.content or "" for delta in deltas) == expected
    assert deltas[-1].finish_reason == answer.choices[0].finish_reason
    assert deltas[-1].delta.content is None
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    assert all(entry.top_logprobs == [] for one in logprobs for entry in one.content or [])
    bytes_ = bytes(byte for one in logprobs for entry in one.content or [] for byte in entry.bytes or [])
    assert bytes_.decode("utf-8", "replace").startswith(expected[:4])
    rendered = server.call("/v1/chat/completions/render", {"messages": messages}).json
    assert rendered["prompt"] == prompt and rendered["token_ids"] == list(prompt.encode())


def test_a_conversation_can_be_continued_and_refused_by_its_template(server: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert server.call("/v1/chat/completions/render", fields).json["prompt"] == "user: Hi\nassistant: Well, "
    refused = server.call("/v1/chat/completions", {"messages": [{"role": "tool", "content": "x"}]})
    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert "no tools here" in refused.error["message"]


def test_what_the_template_of_a_conversation_does_not_read_is_refused(server: Served) -> None:
    question = {"role": "user", "content": "Hi"}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    unread = {"name": "Ann", "tool_calls": [call], "reasoning_content": "hm", "of_tomorrow": {"a": [1]}}
    for path in ("/v1/chat/completions", "/v1/chat/completions/render"):
        for key, value in unread.items():
            refused = server.call(path, {"messages": [question | {key: value}], "max_tokens": 1})
            assert (refused.status, refused.error["code"]) == (400, "invalid_value"), key
            assert refused.error["message"].startswith(f"messages[0].{key}: is not used by the model's chat template")
        empty = dict.fromkeys(unread) | {"refusal": None, "annotations": [], "tool_call_id": "1"}
        assert server.call(path, {"messages": [question | empty], "max_tokens": 1}).status == 200
    tools = {"messages": [question], "tools": [{"type": "function", "function": {"name": "add"}}]}
    assert server.call("/v1/chat/completions", tools).error["code"] == "unsupported_parameter"


def test_openai_python_embeds(client: "openai.OpenAI", server: Served) -> None:
    texts = ["one", "two and three"]
    expected = models()["bert"].embed(texts).float()
    answer = client.embeddings.create(model="bert", input=texts)  # asks for base64
    assert torch.allclose(torch.tensor([row.embedding for row in answer.data]), expected, atol=1e-6)
    assert answer.usage.prompt_tokens == len("".join(texts))
    ids = [list(text.encode()) for text in texts]
    plain = server.call("/v1/embeddings", {"model": "bert", "input": ids, "encoding_format": "float"}).json
    assert torch.allclose(torch.tensor([row["embedding"] for row in plain["data"]]), expected, atol=1e-6)


def test_texts_are_embedded_as_by_embed(server: Served) -> None:
    """With the prompt, and cut where the model's files of sentence-transformers say so; ids stay as they are."""
    lm = models()["sentences"]
    for texts in (["One and two and three", "Two"], [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]):
        for pooling in (None, "mean"):
            body = {"model": "sentences", "input": texts, "encoding_format": "float"}
            answer = server.call("/v1/embeddings", body | ({} if pooling is None else {"pooling": pooling})).json
            vectors = torch.tensor([row["embedding"] for row in answer["data"]])
            assert torch.allclose(vectors, lm.embed(texts, pooling).float(), atol=1e-6)
            assert answer["usage"]["prompt_tokens"] == sum(map(len, lm.embedding_tokens(texts, pooling)))
    assert lm.embedding_tokens("TWO AND MORE") == [list(b"ask: two ")] != lm.embedding_tokens("TWO", "mean")


def test_the_models_own_limit_of_tokens_counts_where_a_body_says_none(server: Served) -> None:
    def count(model: str, path: str = "completions", **body: Any) -> int:
        body = {"model": model, "ignore_eos": True} | body
        usage = server.call(f"/v1/{path}", body).json["usage"]
        return int(usage["completion_tokens"])

    chat: dict[str, Any] = {"path": "chat/completions", "messages": [{"role": "user", "content": "a"}]}
    assert [count(name, prompt=PROMPT) for name in ("llama", "five tokens", "24 tokens")] == [16, 5, 24 - len(PROMPT)]
    assert count("five tokens", **chat) == 5
    assert count("five tokens", prompt=PROMPT, max_tokens=7) == count("24 tokens", prompt=PROMPT, max_tokens=7) == 7
    refused = server.call("/v1/completions", {"model": "24 tokens", "prompt": PROMPT * 2})
    assert refused.status == 400 and "max_length: 24 leaves no room after a prompt of 32" in refused.error["message"]


def test_texts_and_images_are_classified(server: Served) -> None:
    answer = server.call("/v1/classify", {"model": "classes", "input": ["one", "two"]}).json
    expected = models()["classes"].classify(["one", "two"])
    assert [row["label"] for row in answer["data"]] == ["abc"[best] for best in expected.argmax(-1).tolist()]
    assert torch.allclose(torch.tensor([row["probs"] for row in answer["data"]]), expected.float(), atol=1e-6)
    spec = picture_model().spec
    pixels = np.random.default_rng(0).integers(256, size=(spec.image_size, spec.image_size), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert("L" if spec.num_channels == 1 else "RGB").save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    batch = torch.from_numpy(pixels).float()[None, None].expand(1, spec.num_channels, -1, -1) / 255
    answer = server.call("/v1/classify", {"model": "vit", "input": [{"type": "image_url", "image_url": {"url": url}}]})
    expected = models()["vit"].classify(batch)
    assert torch.allclose(torch.tensor([row["probs"] for row in answer.json["data"]]), expected, atol=1e-6)
    for wrong in ("http://example.com/a.png", "data:image/png;base64,AAAA", "data:image/png;base64,*"):
        assert server.call("/v1/classify", {"model": "vit", "input": wrong}).error["code"] == "invalid_value"


def test_the_bytes_of_a_stream(server: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "stream": True, "ignore_eos": True}
    reply = server.call("/v1/completions", body)
    assert reply.status == 200 and reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no" and reply.headers["x-request-id"].startswith("req_")
    *chunks, done = reply.events
    assert done == "[DONE]" and reply.body.endswith(b"data: [DONE]\n\n")
    assert {frozenset(chunk) for chunk in chunks} == {
        frozenset({"id", "object", "created", "model", "system_fingerprint", "choices"})
    }
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] == "length" and set(reasons[:-1]) <= {None}
    assert all(len(chunk["choices"]) == 1 and "logprobs" in chunk["choices"][0] for chunk in chunks)
    chat = server.call("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}], "max_tokens": 2,
                                                "n": 2, "stream": True}).events  # fmt: skip
    assert [chunk["choices"][0]["delta"] for chunk in chat[:2]] == [{"role": "assistant", "content": ""}] * 2
    last = {chunk["choices"][0]["index"]: chunk["choices"][0] for chunk in chat[:-1]}
    assert all(choice["delta"] == {} and choice["finish_reason"] for choice in last.values())


def test_echoed_log_probabilities_are_those_of_the_model(server: Served) -> None:
    """What lm-eval sends: ids, one token, its prompt before it; its three traps."""
    lm = tiny("llama-tiny", "vocab_size=257")
    prompts = [list(b"the cat sat"), list(b"on the mat by the door")]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234, "temperature": 0}
    choices = server.call("/v1/completions", body).json["choices"]
    for prompt, choice, scores in zip(prompts, choices, lm.engine().score(prompts, 1), strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(prompt) + 1 == len(logprobs["tokens"])
        assert logprobs["token_logprobs"][0] is None is logprobs["top_logprobs"][0]
        for ours, top, score in zip(
            logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], scores[1:], strict=False
        ):
            assert score is not None and ours == score.logprob
            assert (ours == max(top.values())) == (score.top[0][1] == score.logprob)
            assert ours in top.values()
        assert logprobs["text_offset"][:3] == [0, 1, 2] and choice["text"].startswith(bytes(prompt).decode())
    forced = body | {"prompt": prompts[0], "logit_bias": {"0": 100}}
    [ended] = server.call("/v1/completions", forced).json["choices"]
    assert ended["finish_reason"] == "stop" and len(ended["logprobs"]["tokens"]) == len(prompts[0]) + 1
    alone = server.call("/v1/completions", body | {"max_tokens": 0}).json
    assert alone["usage"]["completion_tokens"] == 0
    assert alone["choices"][0]["logprobs"]["token_logprobs"] == choices[0]["logprobs"]["token_logprobs"][:-1]
    *chunks, _ = server.call("/v1/completions", body | {"stream": True}).events
    streamed = [value for chunk in chunks for choice in chunk["choices"] if choice["index"] == 1
                for value in choice["logprobs"]["token_logprobs"]]  # fmt: skip
    assert streamed == choices[1]["logprobs"]["token_logprobs"]


def test_settings_reach_the_engine(server: Served) -> None:
    lm = tiny("llama-tiny", "vocab_size=257")
    fields = {
        "temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {"101": -5, "32": 1.5},
    }  # fmt: skip
    sampling: Any = fields | {"logit_bias": {101: -5.0, 32: 1.5}}
    answer = server.call("/v1/completions", fields | {"prompt": PROMPT, "max_tokens": 20, "n": 3, "seed": 7,
                                                      "return_token_ids": True, "min_tokens": 20}).json  # fmt: skip
    for k, choice in enumerate(answer["choices"]):
        request = lm.engine().submit(PROMPT, max_new_tokens=20, min_new_tokens=20, seed=7 + k, **sampling)
        assert choice["text"] == request.result() and choice["token_ids"] == request.tokens
        assert choice["finish_reason"] == "length"
    text = continuation(PROMPT, max_new_tokens=20)
    stop = text[3:6]
    stopped = server.call(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stop": ["?!", stop]}
    )
    assert stopped.json["choices"][0]["text"] == text.partition(stop)[0]
    assert stopped.json["choices"][0]["finish_reason"] == "stop"
    ignored = server.call(
        "/v1/completions",
        {"prompt": "a", "user": "me", "tools": [], "response_format": {"type": "text"}, "stream_options": {}},
    )
    assert ignored.status == 200
    assert ignored.headers["x-archetype-ignored"] == "tools, user, response_format, stream_options"


def test_grammars_constrain_texts(server: Served) -> None:
    pytest.importorskip("llguidance")
    schema = {"enum": [1, 2]}
    forms: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}},
        {"guided_json": schema},
        {"structured_outputs": {"json": schema}},
    ]
    for form in forms:
        text = server.call("/v1/completions", form | {"prompt": "a", "max_tokens": 40}).json["choices"][0]["text"]
        assert json.loads(text) in (1, 2)
    for form in (
        {"guided_choice": ["yes", 'n"o']},
        {"guided_regex": 'yes|n"o'},
        {"structured_outputs": {"regex": 'yes|n"o'}},
    ):
        text = server.call("/v1/completions", form | {"prompt": "a", "max_tokens": 40}).json["choices"][0]["text"]
        assert text in ("yes", 'n"o')
    assert server.call("/v1/completions", {"prompt": "a", "guided_regex": "("}).error["code"] == "invalid_value"


def test_tokens_and_health(server: Served) -> None:
    assert server.call("/tokenize", {"prompt": "hé"}).json == {
        "tokens": [104, 195, 169], "count": 3, "max_model_len": tiny("llama-tiny", "vocab_size=257").spec.context_length
    }  # fmt: skip
    assert server.call("/detokenize", {"tokens": [104, 195, 169]}).json == {"prompt": "hé"}
    info = server.call("/tokenizer_info").json
    assert info["eos_token"] == "<end>" and info["chat_template"] == TEMPLATE and "bos_token" in info
    counted = server.call("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json["count"]
    assert counted == len("user: x\nassistant: ")
    assert server.call("/health").json == {"status": "ok"}
    assert server.call("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 2}).status == 200
    metrics = server.call("/metrics").body.decode()
    assert 'archetype_requests_total{path="/tokenize",status="200"}' in metrics
    assert 'archetype_generated_tokens_total{model="llama"}' in metrics
    assert "archetype_time_to_first_token_seconds_bucket" in metrics


def test_the_page_or_how_to_build_it(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    answer = server.call("/")
    assert answer.status == 200 and b"make page" in answer.body
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text('<script nonce="{{nonce}}"></script>')
    (tmp_path / "secret.txt").write_text("no asset")
    for name, content in (("a-1.js", b"plain"), ("a-1.js.gz", b"packed")):
        (tmp_path / "assets" / name).write_bytes(content)
    bodies = {server.call("/").body for _ in range(2)}
    assert len(bodies) == 2  # a nonce is used once
    answer = server.call("/")
    nonce = answer.body.decode().split('"')[1]
    assert len(nonce) > 16 and f"'nonce-{nonce}'" in answer.headers["content-security-policy"]
    plain, packed = (server.call("/assets/a-1.js", accept_encoding=one) for one in ("identity", "gzip, br"))
    assert (plain.body, packed.body) == (b"plain", b"packed")
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    for one in (plain, packed):
        assert "immutable" in one.headers["cache-control"] and "javascript" in one.headers["content-type"]
    assert server.call("/assets/..%2fsecret.txt").status == 404 == server.call("/assets/none.js").status


ERRORS: list[tuple[dict[str, Any], int, str, str | None]] = [
    # body of /v1/completions, status, code, param
    ({"prompt": "a", "model": "other"}, 404, "model_not_found", "model"),
    ({"promt": "a"}, 400, "unknown_parameter", "promt"),
    ({"prompt": None}, 400, "invalid_value", "prompt"),
    ({"prompt": []}, 400, "invalid_value", "prompt"),
    ({"prompt": [[]]}, 400, "invalid_value", "prompt"),
    ({"prompt": [1, "a"]}, 400, "invalid_value", "prompt"),
    ({"prompt": [999]}, 400, "invalid_value", "prompt"),
    ({"prompt": ["a"] * 129}, 400, "invalid_value", "prompt"),
    ({"prompt": "a", "n": 129}, 400, "invalid_value", "n"),
    ({"prompt": "a", "max_tokens": "5"}, 400, "invalid_value", "max_tokens"),
    ({"prompt": "a", "max_tokens": 5, "max_completion_tokens": 6}, 400, "invalid_value", "max_tokens"),
    ({"prompt": "a", "max_tokens": 100000}, 400, "context_length_exceeded", "prompt"),
    ({"prompt": "a", "temperature": 2.5}, 400, "invalid_value", "temperature"),
    ({"prompt": "a", "top_p": 0}, 400, "invalid_value", "top_p"),
    ({"prompt": "a", "seed": 2**64}, 400, "invalid_value", "seed"),
    ({"prompt": "a", "logprobs": 21}, 400, "invalid_value", "logprobs"),
    ({"prompt": "a", "stop": ["x"] * 17}, 400, "invalid_value", "stop"),
    ({"prompt": "a", "stop": [""]}, 400, "invalid_value", "stop"),
    ({"prompt": "a", "logit_bias": {"99999": 1}}, 400, "invalid_value", "logit_bias"),
    ({"prompt": "a", "logit_bias": {"a": 1}}, 400, "invalid_value", "logit_bias"),
    ({"prompt": "a", "presence_penalty": 3}, 400, "invalid_value", "presence_penalty"),
    ({"prompt": "a", "suffix": "b"}, 400, "unsupported_parameter", "suffix"),
    ({"prompt": "a", "tools": [{"type": "function"}]}, 400, "unsupported_parameter", "tools"),
    ({"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, 400, "invalid_value", "guided_choice"),
    ({"prompt": "a", "response_format": {"type": "json_schema"}}, 400, "invalid_value", "response_format"),
    ({"prompt": "a", "model": "bert"}, 400, "invalid_value", "model"),
    ({"prompt": "a", "stream": True, "temperature": 9}, 400, "invalid_value", "temperature"),
    ({"prompt": "a\ud800"}, 400, "invalid_json", None),
]


def test_every_mistake_is_one_shape(server: Served) -> None:
    for body, status, code, param in ERRORS:
        reply = server.call("/v1/completions", body)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param), (body, reply.body)
        assert reply.error["type"] == "invalid_request_error" and reply.headers["content-type"] == "application/json"
    assert "maximum context length is" in server.call("/v1/completions", ERRORS[11][0]).error["message"]
    raw: list[tuple[bytes, str]] = [
        (b"{", "invalid_json"), (b"[]", "invalid_json"), (b'{"prompt": NaN}', "invalid_value"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_value"), (b"[" * 100_000, "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_json"),
    ]  # fmt: skip
    for data, code in raw:
        reply = server.call("/v1/completions", data)
        assert (reply.status, reply.error["code"]) == (400, code), data[:40]
    for path, body, status, code in (
        ("/v1/complete", {}, 404, "unknown_url"), ("/v1/completions", None, 405, "method_not_allowed"),
        ("/v1/models", {}, 405, "method_not_allowed"), ("/v1/models/x", None, 404, "model_not_found"),
    ):  # fmt: skip
        reply = server.call(path, body)
        assert (reply.status, reply.error["code"]) == (status, code), path
    message = server.call("/v1/embedding", {}).error["message"]
    assert message == "no route has this path; did you mean /v1/embeddings?"
    message = server.call("/v1/messages", {}).error["message"]
    assert message == "no route has this path; send it to /v1/chat/completions"
    talk = {"messages": [{"role": "user", "content": "Hi"}], "functions": [{"name": "a"}]}
    reply = server.call("/v1/chat/completions", talk)
    assert reply.status == 400 and reply.error["message"] == "functions: is not supported; send tools"
    reply = server.call("/v1/completions", {"prompt": "a"}, content_type="text/plain")
    assert (reply.status, reply.error["code"]) == (415, "media_type")
    for host in ("evil.example", "evil.example:80", ""):
        reply = server.call("/v1/models", host=host)
        assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")
    assert server.call("/v1/models", host="localhost:1").status == 200


CLIENTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "open-webui": [
        ("/v1/chat/completions", {
            "stream": True, "model": "llama", "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": "Hi"}, {
                "role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
            }],
        }),
        ("/v1/chat/completions", {
            "model": "llama", "messages": [{"role": "user", "content": "A title"}], "stream": False,
            "max_completion_tokens": 5, "metadata": {"task": "title_generation"}, "user": "id",
        }),
    ],
    "Continue": [
        ("/v1/completions", {
            "model": "llama", "prompt": "<fim_prefix>def f():<fim_suffix>\n<fim_middle>", "max_tokens": 8,
            "temperature": 0.01, "stream": True, "frequency_penalty": None, "presence_penalty": None, "top_p": None,
            "stop": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "/src/", "#- coding", "```", "t.",
                     "\ndef", "\nclass"],
        }),
        ("/v1/chat/completions", {
            "model": "llama", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                                           {"role": "assistant", "content": ""}, {"role": "user", "content": "x"}],
            "max_tokens": 4, "stream": True, "temperature": 0.5, "stop": None, "n": None, "tools": [],
        }),
    ],
    "aider": [
        ("/v1/chat/completions", {
            "model": "llama", "messages": [{"role": "system", "content": "x", "name": None},
                                           {"role": "user", "content": "y"}],
            "temperature": 0, "stream": True, "max_tokens": 4,
        }),
    ],
    "lm-eval": [
        ("/v1/completions", {
            "model": "llama", "prompt": ["a", "b"], "max_tokens": 4, "temperature": 0, "seed": 1234,
            "stop": ["\n\n", "Q:", "</s>", "<|im_end|>", "."],
        }),
    ],
}  # fmt: skip


def test_requests_as_clients_send_them(server: Served) -> None:
    for client, requests in CLIENTS.items():
        for path, body in requests:
            reply = server.call(path, body)
            assert reply.status == 200, (client, reply.body)
            if body.get("stream"):
                *chunks, done = reply.events
                assert done == "[DONE]" and all("choices" in chunk for chunk in chunks)
                reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
                assert len(reasons) == 1 and reasons[0] in ("stop", "length")
                asked = body.get("stream_options", {}).get("include_usage", False)
                assert [not chunk["choices"] for chunk in chunks].count(True) == asked
            else:
                assert all(choice["finish_reason"] in ("stop", "length") for choice in reply.json["choices"])


def test_a_translator_takes_the_source_as_prompt(server: Served) -> None:
    lm = models()["transformer"]
    sources = ["one two", "three"]
    body = {"model": "transformer", "prompt": sources, "max_tokens": 8, "temperature": 0}
    choices = server.call("/v1/completions", body | {"logprobs": 1}).json["choices"]
    texts = [choice["text"] for choice in choices]
    assert texts == [lm.engine().submit(source, max_new_tokens=8, temperature=0.0).result() for source in sources]
    assert all(len(choice["logprobs"]["tokens"]) <= 8 for choice in choices)
    chunks = server.call("/v1/completions", body | {"stream": True}).events[:-1]
    streamed = ["", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts
    beams = server.call("/v1/completions", body | {"use_beam_search": True}).json["choices"]
    assert [choice["text"] for choice in beams] == lm.translate(sources, max_new_tokens=8)
    for most in (0, 1, 2):
        whole = server.call("/v1/completions", body | {"use_beam_search": True, "max_tokens": most}).json
        assert whole["usage"]["completion_tokens"] == 2 * most
        assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    ending = {"use_beam_search": True, "max_tokens": 500}
    whole = server.call("/v1/completions", body | ending | {"model": "ending"}).json
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"stop"}
    plain = {"model", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options", "use_beam_search"}
    for name, field in CompletionRequest.model_fields.items():
        value = next((v for v in (0.5, 3, True, "a", ["a"], [1], {"1": 1.0}, {"a": 1}) if accepts(field, v)), 2)
        reply = server.call("/v1/completions", body | {"use_beam_search": True, name: value})
        if name in CompletionRequest.ignored:
            assert reply.headers["x-archetype-ignored"] == name
        elif name not in plain:
            assert reply.error["param"] == name, (name, value, reply.body)
    for wrong in ({"echo": True}, {"use_beam_search": True, "n": 2}, {"model": "llama", "use_beam_search": True}):
        assert server.call("/v1/completions", body | wrong).error["code"] == "unsupported_parameter"
    assert server.call("/v1/chat/completions", {"model": "transformer", "messages": [{"role": "user"}]}).status == 400


def accepts(field: Any, value: Any) -> bool:
    """Whether a field of a body may have a value."""
    try:
        TypeAdapter(Annotated[field.annotation, field], config={"strict": True}).validate_python(value)
    except ValidationError:
        return False
    return True


FIELDS = [
    "prompt", "messages", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logit_bias", "echo",
    "logprobs", "stream", "stream_options", "model", "response_format", "presence_penalty", "min_tokens",
    "stop_token_ids", "guided_choice", "ignore_eos", "what",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats(-1, 3) | st.text(max_size=4) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("type", "0", "role")), inner),
    max_leaves=4,
)
STARTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": [{"role": "user"}]},
}


@examples(10)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_no_fields_make_the_server_fail(server: Served, fields: dict[str, Any]) -> None:
    for path, start in STARTS.items():
        reply = server.call(path, start | {"max_tokens": 2} | fields)
        assert reply.status in (200, 400, 404), (fields, reply.body)
        if reply.status != 200:
            assert reply.error["message"]


def test_sixteen_clients_at_once_get_what_each_gets_alone(server: Served) -> None:
    def ask(number: int, results: dict[int, Any]) -> None:
        body = {"prompt": f"{number} " * (1 + number % 5), "max_tokens": 8 + number, "temperature": 0, "stream": True,
                "model": "mamba" if number % 4 == 3 else "llama"}  # fmt: skip
        if number % 3 == 2:  # goes away
            with server.connect() as connection:
                server.send(connection, "/v1/completions", body | {"max_tokens": 90})
                connection.recv(10)
            return
        chunks = server.call("/v1/completions", body).events
        results[number] = "".join(choice["text"] for chunk in chunks[:-1] for choice in chunk["choices"])

    together: dict[int, str] = {}
    threads = [threading.Thread(target=ask, args=(number, together)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone: dict[int, str] = {}
    for number in together:
        ask(number, alone)
    assert together == alone and len(together) == 11
    while server.unfinished():
        pass


def test_lm_eval_scores_as_the_model_does(server: Served) -> None:
    pytest.importorskip("tenacity")  # lm-eval[api]
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    lm = tiny("llama-tiny", "vocab_size=257")
    api = LocalCompletionsAPI(
        base_url=f"{server.url}/completions", model="llama", tokenizer_backend="remote", batch_size=2, max_length=100
    )
    pairs = [("the cat", " sat on"), ("two", " two"), ("a", "\0"), ("one", continuation("one", max_new_tokens=3))]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for (context, rest), (ours, is_greedy) in zip(pairs, api.loglikelihood(requests, disable_tqdm=True), strict=True):
        [rows] = lm.engine().score([list((context + rest).encode())], 1)
        scores = [row for row in rows[len(context.encode()) :] if row is not None]
        assert math.isclose(ours, sum(row.logprob for row in scores), abs_tol=1e-5)
        assert is_greedy == all(row.logprob == row.top[0][1] for row in scores)
