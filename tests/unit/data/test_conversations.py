"""What of a conversation is to be learned, token by token against the rendered template."""

import random
from typing import Any

import pytest

from archetype.data import preparation
from archetype.data.conversations import conversation_rows
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, chat_template, train_tokenizer
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


IN_ORDER = [  # what a template may write of each message, around the loop, and behind it
    ["<{{ m.role }}>{{ m.content }}</s>", "{% if loop.first %}^{% endif %}{{ loop.index }}:{{ m.content }};",
     "{% set c = m.content | trim %}{{ m.role ~ c }}\n",
     "{% for c in m.content %}{{ c }}{% if loop.last %}.{% endif %}{% endfor %}",
     "{% if not loop.first %}{{ loop.previtem.role }}{% endif %}{{ m.content }}{% if m == messages[0] %}!{% endif %}"],
    ["", "{{ bos_token }}", "{% if messages[0].role == 'system' %}S{% endif %}", "{% set talk = messages %}",
     "{% macro tag(x) %}<{{ x }}>{% endmacro %}{{ tag('a') }}"],
    ["{% if add_generation_prompt %}<a>{% endif %}", "{{ '<a>' if add_generation_prompt else '.' }}"],
]  # fmt: skip
AHEAD = [  # what depends on later messages, on their number, or on what one left to the next
    ["{{ m.content }}{% if not loop.last %}|{% endif %}", "{{ loop.length }}{{ m.content }}",
     "{{ loop.revindex }}{{ m.content }}",
     "{{ m.content }}{{ loop.nextitem.role }}", "{{ m.content }}{{ messages[loop.index0 - 1].role }}",
     "{{ m.content }}{% if messages[-1] == m %}!{% endif %}", "{{ m.content }}{% set ns.n = ns.n + 1 %}",
     "{{ m.content }}{% if add_generation_prompt %}?{% endif %}", "{% set l = loop %}{{ m.content }}{{ l.last }}"],
    ["{{ messages | length }}", "{% for x in messages[::-1] %}{{ x.role }}{% endfor %}", "{{ messages[1].role }}",
     "{% set talk = messages %}{{ talk | last }}", "{% if add_generation_prompt %}P{% endif %}"],
    ["{% if ns.n %}{{ ns.n }}{% endif %}{% if add_generation_prompt %}<a>{% endif %}",
     "{{ messages[-1].role }}{% if add_generation_prompt %}<a>{% endif %}"],
]  # fmt: skip


def template_of(draw: random.Random, fragments: list[list[str]]) -> ChatTemplate:
    """A template of a fragment of each list: in the loop, before it, and behind it."""
    inner, before, behind = map(draw.choice, fragments)
    over = "talk" if "set talk = messages %}" in before and "last" not in before and draw.random() < 0.8 else "messages"
    loop = f"{{% for m in {over} %}}{inner}{{% endfor %}}"
    if draw.random() < 0.3:
        loop = f"{{% if bos_token %}}{loop}{{% else %}}no{{% endif %}}"
    counted = "{% set ns = namespace(n=0) %}" if "ns." in inner + behind else ""
    return ChatTemplate(f"{counted}{before}{loop}{behind}", {"bos_token": "<s>"})


@pytest.mark.parametrize("draws", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_one_rendering_holds_all_beginnings_or_says_that_it_does_not(
    draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates that write messages in order, and such with one part that does not: each beginning is as rendered."""
    draw, tokenizer, in_order = random.Random(1), train_tokenizer("bytes", [], None), 0
    for number in range(draws):
        fragments = [*IN_ORDER]
        if is_ahead := bool(number % 2):
            place = draw.randrange(3)
            fragments[place] = AHEAD[place]
        template, talk = template_of(draw, fragments), [{"role": "system", "content": "x"}, *drawn_talk(draw, 6)]
        for prompted in (True, False):
            beginnings = template.beginnings(talk, prompted)
            assert (beginnings is None) >= is_ahead, template.source
            if beginnings is not None:
                in_order += 1
                for count in range(1, len(talk) + 1):
                    assert beginnings.render(count) == template.render(talk[:count], prompted), template.source
        if number % 5 == 0:
            quick = outcome(talk, template, tokenizer)
            with monkeypatch.context() as patch:
                patch.setattr(ChatTemplate, "beginnings", lambda *_: None)
                assert outcome(talk, template, tokenizer) == quick
    assert in_order == draws


def outcome(talk: Any, template: ChatTemplate, tokenizer: Tokenizer) -> Any:
    """The rows of a conversation, or why there are none."""
    try:
        return [(row.ids, row.is_answer, row.text) for row in conversation_rows(talk, template, tokenizer, "")]
    except DataError as error:
        return str(error)


def test_a_long_conversation_is_rendered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    render = chat_template._render

    def count(*args: Any, **options: Any) -> Any:
        rendered.append(len(args[1]["messages"]))
        return render(*args, **options)

    monkeypatch.setattr(chat_template, "_render", count)
    tokenizer = train_tokenizer("bytes", [], None)
    conversation_rows(drawn_talk(random.Random(0), 301), ChatTemplate(CHATML, {}), tokenizer, "")
    assert rendered == [300, 300]  # what is behind the last answer is not learned


def test_preparation_is_told_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    with preparation.telling(lambda *numbers: told.append(numbers)):
        assert [*preparation.prepared([1, 2, 3])] == [1, 2, 3] and not told
        monkeypatch.setattr(preparation, "SOON", -1.0)
        assert [*preparation.prepared(["a", "b"])] == ["a", "b"] and told == [(0, 2), (1, 2)]
    assert [*preparation.prepared([1])] == [1] and len(told) == 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user"}], "is not a list of messages with a role and a content"),
        ("hello", "is not a list of messages"),
        ([{"role": "user", "content": "a"}], "has no message of role assistant"),
    ],
)
def test_what_is_wrong_is_said(messages: Any, message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        conversation_rows(messages, ChatTemplate(CHATML, {}), tokenizer, "line 1")
