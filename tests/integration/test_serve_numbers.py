"""The numbers of answers against what the model and the tokenizer give when each is asked alone.

Tokens are of several bytes, some of them parts of characters; prompts have letters of several bytes.
"""

import base64
import copy
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.serve.models import Source
from archetype.generate.slots import MIN_SHARED
from archetype.models.build import build
from archetype.spec.edit import assign
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.cases import case
from tests.helpers.serving import TEMPLATE, Served, serving
from tests.helpers.weights import randomize
from tests.integration.test_serve import no_network

__all__ = ["no_network"]  # the fixture, for this file too

TEXT = "the cat sat on the mat, café über naïve 世界 and the dog sat there " * 9
PROMPTS = ["the cat über", "a dog", "naïve 世界 sat on the"]


@cache
def loaded(preset: str, *changes: str) -> LanguageModel:
    """A preset with a byte-level BPE and random weights in float64."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    spec = assign(archetype.load_spec(preset), ["vocab_size=310", *changes])
    model = randomize(build(spec, dtype=torch.float64), seed=7).eval()
    return LanguageModel(spec, model, tokenizer, labels=(), template=ChatTemplate(TEMPLATE, {}))  # type: ignore[arg-type]


def decoder() -> LanguageModel:
    return loaded("llama-tiny")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    classes = loaded("bert-tiny", "head={kind: classification, num_classes: 3}")
    models = {"llama": decoder(), "bert": loaded("bert-tiny"), "classes": classes, "pair": loaded("transformer-tiny")}
    with serving(models, sources=[Source(name, name) for name in models]) as served:
        yield served


def ids_of(text: str) -> list[int]:
    assert decoder().tokenizer is not None
    return decoder().tokenizer.encode(text)


def bytes_of(id: int) -> bytes:
    """A token's bytes by GPT-2's table, as transformers has it."""
    byte = {character: number for number, character in bytes_to_unicode().items()}
    piece = next((piece for piece, one in vocabulary().items() if one == id), None)
    return f"token_id:{id}".encode() if piece is None else bytes(byte[character] for character in piece)


@cache
def vocabulary() -> dict[str, int]:
    pieces: dict[str, int] = decoder().tokenizer.backend.get_vocab()  # type: ignore[union-attr]
    return {piece: id for piece, id in pieces.items() if piece not in decoder().tokenizer.special_tokens}  # type: ignore[union-attr]


def certain(ids: list[int]) -> str:
    """The text of tokens as far as it is certain: those that end within a character say nothing until it is whole."""
    for end in range(len(ids), 0, -1):
        try:
            return b"".join(map(bytes_of, ids[:end])).decode()
        except UnicodeDecodeError:
            continue
    return ""


@cache
@torch.no_grad()
def logprobs_of(ids: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of what follows each of the tokens."""
    logits: torch.Tensor = decoder().model(torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)


def plain_text_only() -> dict[str, float]:
    """A bias by which only tokens of whole ASCII characters are chosen."""
    return {str(id): -100.0 for id in range(310) if not bytes_of(id).isascii() or id >= 300 or b"token" in bytes_of(id)}


def test_seeds_and_texts_of_several_prompts(server: Served) -> None:
    """Choice k of each prompt has seed + k, whichever prompt it is; beyond 63 bits they begin again."""
    for seed in (7, 2**63 - 1):
        body = {"model": "llama", "prompt": PROMPTS, "n": 2, "seed": seed, "temperature": 1.0, "max_tokens": 6,
                "return_token_ids": True, "ignore_eos": True}  # fmt: skip
        answer = server.call("/v1/completions", body).json
        for index, choice in enumerate(answer["choices"]):
            number, k = divmod(index, 2)
            alone = decoder().engine().submit(
                ids_of(PROMPTS[number]), seed=(seed + k) % 2**63, temperature=1.0, max_new_tokens=6, ignore_eos=True
            )  # fmt: skip
            with case(seed, index):
                assert choice["index"] == index and choice["text"] == alone.result()
                assert choice["token_ids"] == alone.tokens
                assert choice["prompt_token_ids"] == ids_of(PROMPTS[number])
        assert answer["usage"]["prompt_tokens"] == sum(len(ids_of(prompt)) for prompt in PROMPTS)
        assert answer["usage"]["completion_tokens"] == 6 * 6
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 36


def test_top_k_of_none_and_of_one(server: Served) -> None:
    """0 and -1 say that it is off; 1 leaves the likeliest."""
    body = {"model": "llama", "prompt": PROMPTS[0], "seed": 3, "temperature": 1.5, "max_tokens": 8, "ignore_eos": True}
    text = server.call("/v1/completions", body).json["choices"][0]["text"]
    for top_k, expected in (
        (0, text), (-1, text), (310, text),
        (1, server.call("/v1/completions", body | {"temperature": 0}).json["choices"][0]["text"]),
    ):  # fmt: skip
        with case(top_k):
            assert server.call("/v1/completions", body | {"top_k": top_k}).json["choices"][0]["text"] == expected
    assert expected != text


def test_tokens_that_were_cached(server: Served) -> None:
    """The longest beginning that any earlier text has in common, less than all of a prompt; once for each prompt."""
    read: list[list[int]] = []

    def shared(ids: list[int]) -> int:
        counts = [0]
        for text in read:
            same = [one == other for one, other in zip(ids, text, strict=False)]
            counts.append(min(same.index(False) if False in same else len(same), len(ids) - 1))
        return max(counts) if max(counts) >= MIN_SHARED else 0

    base = [*range(20, 60)]
    for ids in (
        base, base, [*base, 7, 8], [*base[: MIN_SHARED - 1], 99, 98], [*base[:MIN_SHARED], 99, 98],
        [*base[: MIN_SHARED + 1], 99, 98], base[:MIN_SHARED], base[: MIN_SHARED + 1], [5, *base],
    ):  # fmt: skip
        for n in (1, 3):
            body = {"model": "llama", "prompt": ids, "max_tokens": 4, "temperature": 0, "n": n, "ignore_eos": True,
                    "return_token_ids": True}  # fmt: skip
            answer = server.call("/v1/completions", body).json
            with case(len(ids), ids[-2:], n):
                assert answer["usage"] == {
                    "prompt_tokens": len(ids), "completion_tokens": 4 * n, "total_tokens": len(ids) + 4 * n,
                    "prompt_tokens_details": {"cached_tokens": shared(ids)},
                }  # fmt: skip
            read += [[*ids, *choice["token_ids"][:-1]] for choice in answer["choices"]]
    fresh = [[number, *base[:30]] for number in (200, 201, 202)]
    for cached in (0, sum(len(ids) - 1 for ids in fresh)):  # none share a beginning: first none, then all but the last
        body = {"model": "llama", "prompt": fresh, "max_tokens": 1, "temperature": 0, "n": 2}
        assert server.call("/v1/completions", body).json["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_in_the_text(server: Served, echo: bool) -> None:
    """Each is the number of characters before the token, of the prompt too where it is echoed; streamed the same."""
    body = {"model": "llama", "prompt": PROMPTS, "n": 2, "seed": 3, "temperature": 1.0, "max_tokens": 8, "logprobs": 2,
            "echo": echo, "return_token_ids": True, "ignore_eos": True, "logit_bias": plain_text_only()}  # fmt: skip
    choices = server.call("/v1/completions", body).json["choices"]
    for index, choice in enumerate(choices):
        prompt = ids_of(PROMPTS[index // 2])
        ids = [*prompt, *choice["token_ids"]] if echo else choice["token_ids"]
        with case(echo, index):
            offsets = [len(certain(ids[:count])) for count in range(len(ids))]
            assert choice["logprobs"]["text_offset"] == offsets
            assert choice["text"] == certain(ids)
            assert len({len(column) for column in choice["logprobs"].values()}) == 1
    streamed: dict[int, list[int]] = {index: [] for index in range(len(choices))}
    for chunk in server.call("/v1/completions", body | {"stream": True}).events[:-1]:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += (choice["logprobs"] or {"text_offset": []})["text_offset"]
    assert [streamed[index] for index in range(len(choices))] == [one["logprobs"]["text_offset"] for one in choices]


def test_log_probabilities_of_chosen_tokens_and_alternatives(server: Served) -> None:
    """By one plain pass; the chosen token is among them whatever its rank, and tokens are named by their bytes."""
    body = {"model": "llama", "prompt": PROMPTS[0], "n": 3, "seed": 5, "temperature": 2.0, "max_tokens": 10,
            "logprobs": 3, "return_token_ids": True, "ignore_eos": True}  # fmt: skip
    prompt, ranks = ids_of(PROMPTS[0]), set()
    for choice in server.call("/v1/completions", body).json["choices"]:
        logp = logprobs_of((*prompt, *choice["token_ids"]))
        for place, id in enumerate(choice["token_ids"]):
            row = logp[len(prompt) + place - 1]
            listed = {*row.topk(3).indices.tolist(), id}
            ranks.add(int((row > row[id]).sum()))
            expected: dict[str, float] = {}
            for one in listed:
                expected[name_of(one)] = max(float(row[one]), expected.get(name_of(one), -math.inf))
            said = choice["logprobs"]
            assert said["tokens"][place] == name_of(id)
            assert said["token_logprobs"][place] == pytest.approx(float(row[id]), abs=1e-6)
            assert said["top_logprobs"][place] == pytest.approx(expected, abs=1e-6)
    assert max(ranks) > 3
    chat = {"model": "llama", "messages": [{"role": "user", "content": "café"}], "max_tokens": 12, "logprobs": True,
            "top_logprobs": 2, "temperature": 2.0, "seed": 1, "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    answer = server.call("/v1/chat/completions", chat).json
    prompt, ids = ids_of("user: café\nassistant: "), answer["choices"][0]["token_ids"]
    assert answer["prompt_token_ids"] == prompt and answer["usage"]["prompt_tokens"] == len(prompt)
    logp = logprobs_of((*prompt, *ids))
    for place, (one, id) in enumerate(zip(answer["choices"][0]["logprobs"]["content"], ids, strict=True)):
        row = logp[len(prompt) + place - 1]
        assert one["logprob"] == pytest.approx(float(row[id]), abs=1e-6) and bytes(one["bytes"]) == bytes_of(id)
        best = row.topk(2)
        assert [bytes(other["bytes"]) for other in one["top_logprobs"]] == [bytes_of(i) for i in best.indices.tolist()]
        assert [other["logprob"] for other in one["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_a_token_that_ends_an_answer_is_counted_and_not_listed(server: Served) -> None:
    chat = {"model": "llama", "messages": [{"role": "user", "content": "café"}], "max_tokens": 12, "logprobs": True,
            "temperature": 0, "return_token_ids": True}  # fmt: skip
    ids = server.call("/v1/chat/completions", chat).json["choices"][0]["token_ids"]
    stop = ids[5]
    first = ids.index(stop)
    answer = server.call("/v1/chat/completions", chat | {"stop_token_ids": [stop]}).json
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop" and choice["token_ids"] == ids[: first + 1]
    assert [bytes(one["bytes"]) for one in choice["logprobs"]["content"]] == [bytes_of(id) for id in ids[:first]]
    assert answer["usage"]["completion_tokens"] == first + 1


def test_a_prompt_that_ends_within_a_character_is_echoed_whole(server: Served) -> None:
    ids = ids_of("the ф")[:-1]
    assert certain(ids) == certain(ids[:-1]) and decoder().tokenizer is not None
    body = {"model": "llama", "prompt": [ids], "echo": True, "max_tokens": 0, "logprobs": 0}
    [choice] = server.call("/v1/completions", body).json["choices"]
    assert choice["text"] == decoder().tokenizer.decode(ids) and choice["text"].endswith("\ufffd")  # type: ignore[union-attr]
    assert choice["logprobs"]["text_offset"] == [len(certain(ids[:count])) for count in range(len(ids))]


def name_of(id: int) -> str:
    try:
        return bytes_of(id).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in bytes_of(id))


def test_usage_of_translations_vectors_and_classes(server: Served) -> None:
    beam = {"model": "pair", "prompt": PROMPTS, "max_tokens": 5, "use_beam_search": True}
    answer = server.call("/v1/completions", beam).json
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == loaded("transformer-tiny").translate(PROMPTS, max_new_tokens=5)
    assert answer["usage"]["prompt_tokens"] == sum(len(ids_of(prompt)) + 1 for prompt in PROMPTS)  # a source ends
    ended = sum(choice["finish_reason"] == "stop" for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == sum(len(ids_of(text)) for text in texts) + ended
    inputs = [*PROMPTS, "x"]
    vectors = {
        format: server.call("/v1/embeddings", {"model": "bert", "input": inputs, "encoding_format": format}).json
        for format in ("float", "base64")
    }
    count = sum(len(ids_of(text)) for text in inputs)
    for index, (plain, coded) in enumerate(zip(*(vectors[name]["data"] for name in vectors), strict=True)):
        decoded = base64.b64decode(coded["embedding"])
        assert struct.unpack(f"<{len(decoded) // 4}f", decoded) == tuple(plain["embedding"])
        assert plain["index"] == coded["index"] == index
    assert vectors["float"]["usage"] == {"prompt_tokens": count, "total_tokens": count}
    classes = server.call("/v1/classify", {"model": "classes", "input": inputs}).json
    assert classes["usage"] == {"prompt_tokens": count, "total_tokens": count}
    for text, one in zip(inputs, classes["data"], strict=True):
        model: Any = loaded("bert-tiny", "head={kind: classification, num_classes: 3}").model
        with torch.no_grad():
            expected = model(torch.tensor([ids_of(text)])).logits[0].softmax(-1)
        assert one["probs"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert one["label"] == str(int(expected.argmax())) and one["num_classes"] == 3


def test_the_room_that_a_prompt_leaves(server: Served) -> None:
    """Up to the last token of the context, and not one further."""
    context = decoder().spec.context_length  # type: ignore[union-attr]
    for length, most, status in (
        (context - 3, 3, 200), (context - 3, 4, 400), (context - 1, 1, 200), (context, 0, 200), (context, 1, 400),
        (context - 2, None, 200), (context, None, 400),
    ):  # fmt: skip
        body = {"model": "llama", "prompt": [11] * length, "temperature": 0, "ignore_eos": True}
        answer = server.call("/v1/completions", body | ({} if most is None else {"max_tokens": most}))
        with case(length, most):
            assert answer.status == status
            if status == 200:
                left = min(16, context - length) if most is None else most
                assert answer.json["usage"]["completion_tokens"] == left


def test_the_token_that_starts_a_text_is_added_where_prompts_have_one() -> None:
    """Before a text where the tokenizer does so, before an empty one anyhow, and never where that is not wanted."""
    models = {}
    for name, adds in (("adds", True), ("has", False)):
        lm = loaded("llama-tiny")
        tokenizer = copy.deepcopy(lm.tokenizer)
        assert tokenizer is not None
        tokenizer.bos, tokenizer.adds_bos = 7, adds
        models[name] = replace(lm, tokenizer=tokenizer)
    with serving(models, sources=[Source(name, name) for name in models]) as served:
        for name, before in (("adds", [7]), ("has", [])):
            for text, added in (("the cat", before), ("", [7])):
                for said in (None, True, False):
                    asked = {"model": name, "prompt": text, "add_special_tokens": said}
                    asked = {key: value for key, value in asked.items() if value is not None}
                    with case(name, text, said):
                        expected = ids_of(text) if said is False else [*added, *ids_of(text)]
                        assert served.call("/tokenize", asked).json["tokens"] == expected
                        if expected:
                            reply = served.call("/v1/completions", asked | {"max_tokens": 1}).json
                            assert reply["usage"]["prompt_tokens"] == len(expected)
