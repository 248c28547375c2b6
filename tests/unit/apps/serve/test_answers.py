"""Log-probabilities in answers: tokens that share a text, and those whose bytes are no text."""

from types import SimpleNamespace
from typing import Any

from archetype.apps.serve.answers import CompletionLogprobs, chat_logprobs
from archetype.generate import Event, Logprobs

NAMES = {1: b"a", 2: b"a", 3: b"\xc3", 4: b"b"}
MODEL: Any = SimpleNamespace(bytes_of=NAMES.__getitem__)


def test_of_two_tokens_with_one_text_the_likelier_counts() -> None:
    for top in (((1, -0.5), (2, -2.0)), ((2, -0.5), (1, -2.0))):
        rows = CompletionLogprobs(MODEL, 2)
        rows.add(2, "a", Logprobs(dict(top)[2], top))
        assert rows.take()["top_logprobs"] == [{"a": -0.5}]


def test_a_token_within_a_character_is_named_by_its_bytes() -> None:
    rows = CompletionLogprobs(MODEL, 1, offset=5)
    rows.add(3, "", Logprobs(-1.0, ((4, -0.1),)))
    rows.add(4, "bc", None)
    rows.add(4, "", Logprobs(-3.0, ((4, -3.0),)))
    assert rows.take() == {
        "tokens": ["bytes:\\xc3", "b", "b"], "token_logprobs": [-1.0, None, -3.0],
        "top_logprobs": [{"b": -0.1, "bytes:\\xc3": -1.0}, None, {"b": -3.0}], "text_offset": [5, 5, 7],
    }  # fmt: skip
    said = chat_logprobs(MODEL, Event(None, 3, "", Logprobs(-1.0, ((4, -0.1),))), 1)  # type: ignore[arg-type]
    assert (said["token"], said["bytes"]) == ("\ufffd", [0xC3]) and said["top_logprobs"][0]["bytes"] == [0x62]
