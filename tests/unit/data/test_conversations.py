"""What of a conversation is to be learned, token by token against the rendered template."""

from typing import Any

import pytest

from archetype.data.conversations import conversation_rows
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.chat_template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # earlier answers lose what they thought
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content.split('|')[-1] if not loop.last else m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi <3"},
    {"role": "assistant", "content": "Hello!\nHow are you?"},
    {"role": "user", "content": "Well."},
    {"role": "assistant", "content": "Good."},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return add_tokens(
        train_tokenizer("byte_bpe", ["Hello! How are you? Hi Well. Good."], 280), ["<|im_start|>", "<|im_end|>"]
    )


def test_the_answers_and_the_token_that_ends_them_are_learned(tokenizer: Tokenizer) -> None:
    (row,) = conversation_rows(TALK, ChatTemplate(CHATML, {}), tokenizer, "")
    rendered = ChatTemplate(CHATML, {}).render(TALK, add_generation_prompt=False)
    assert row.ids == tokenizer.encode_with_special_tokens(rendered)
    expected, start = [], 0
    for text in ("Hello!\nHow are you?<|im_end|>", "Good.<|im_end|>"):  # by hand: where each stands in the text
        start = rendered.index(text, start)
        before = len(tokenizer.encode_with_special_tokens(rendered[:start]))
        expected += range(before, before + len(tokenizer.encode_with_special_tokens(text)))
    assert [place for place, marked in enumerate(row.is_answer) if marked] == expected
    prompt = tokenizer.encode_with_special_tokens(ChatTemplate(CHATML, {}).render(TALK[:2]))
    assert row.ids[: expected[0]] == prompt  # what the model reads when it is asked to answer


def test_a_template_that_forgets_makes_a_row_of_each_answer(tokenizer: Tokenizer) -> None:
    talk: list[dict[str, str]] = [
        {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "hm|2"},
        {"role": "user", "content": "+1"}, {"role": "assistant", "content": "so|3"},
    ]  # fmt: skip
    rows = conversation_rows(talk, ChatTemplate(FORGETFUL, {}), tokenizer, "")
    assert [row.text for row in rows] == ["u:1+1;a:hm|2;", "u:1+1;a:2;u:+1;a:so|3;"]
    answers = [[id for id, marked in zip(row.ids, row.is_answer, strict=True) if marked] for row in rows]
    assert [tokenizer.decode(ids) for ids in answers] == ["hm|2;", "so|3;"]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user"}], "is not a list of messages with a role and a content"),
        ("hello", "is not a list of messages"),
        ([{"role": "user", "content": "a"}], "has no answer of the role assistant"),
    ],
)
def test_what_is_wrong_is_said(messages: Any, message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        conversation_rows(messages, ChatTemplate(CHATML, {}), tokenizer, "line 1")
