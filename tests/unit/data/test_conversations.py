"""What of a conversation is to be learned, token by token against the rendered template."""

import random
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


class Counted:
    """A tokenizer that notes how many characters it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.special_tokens, self.characters = tokenizer, tokenizer.special_tokens, 0

    def encode_with_special_tokens(self, text: str) -> list[int]:
        self.characters += len(text)
        return self.tokenizer.encode_with_special_tokens(text)


def drawn_talk(draw: random.Random, length: int) -> list[dict[str, str]]:
    words = ["Hello", " how", "\n\n", "é世界🙂", " ", "  ", "<|im_end|>", "'s", "12345", "a" * 40, "\u2028", "\r\n"]
    return [
        {"role": ("user", "assistant")[place % 2], "content": "".join(draw.choices(words, k=draw.randint(0, 8)))}
        for place in range(length)
    ]


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe", "words", "characters", "bytes"])
def test_tokens_are_those_of_the_whole_text_however_long_the_conversation(kind: str) -> None:
    draw = random.Random(kind)
    text = "Hello! how How are you? user assistant 12345 é世界🙂 a\n\n\u2028\r\n's <|im_start|> <|im_end|> " * 3
    tokenizer = train_tokenizer(kind, text, 300 if kind in ("byte_bpe", "bpe") else None)
    if kind in ("byte_bpe", "bpe"):
        tokenizer = add_tokens(tokenizer, ["<|im_start|>", "<|im_end|>"])
    template, whole = ChatTemplate(CHATML, {}), 0
    for _ in range(12):
        talk = drawn_talk(draw, 10)
        (row,) = conversation_rows(talk, template, tokenizer, "")
        expected: list[int] = []
        text = ""
        for number in range(1, 10, 2):  # every text read from its beginning; where its first tokens differ, what is new
            for longer in (template.render(talk[:number]), template.render(talk[: number + 1], False)):
                ids = tokenizer.encode_with_special_tokens(longer)
                new = tokenizer.encode_with_special_tokens(longer[len(text) :])
                expected += ids[len(expected) :] if ids[: len(expected)] == expected else new
                text = longer
        assert (row.ids, row.text) == (expected, text)
        whole += row.is_whole
    assert whole > 3


def test_a_conversation_is_read_in_linear_time(tokenizer: Tokenizer) -> None:
    read = []
    for length in (50, 100):
        counted: Any = Counted(tokenizer)
        conversation_rows(drawn_talk(random.Random(0), length), ChatTemplate(CHATML, {}), counted, "")
        read.append(counted.characters)
    assert read[1] < 2.5 * read[0]


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
