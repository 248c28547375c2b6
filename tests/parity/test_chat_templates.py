"""Chat templates as they are published: the texts of transformers, for conversations of every sort that are drawn."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from archetype.data.conversations import conversation_rows, prompt_and_answer
from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import REASONING, ChatTemplate
from archetype.tokenizers.tool_calls import read_calls
from archetype.tokenizers.tool_rendering import tool_form

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TEXTS = (
    "Hi", "  What is 2 + 2?\n", "{{ 7 * 7 }} {% x %}", "Grüß Gott, 世界 🙂", "<b>&amp;\"'</b>", "a\n\nb\n",
    "<think>\nhm\n</think>\n\nFour.",
    "hm</think>Four.", "[INST] x [/INST]", "CONTINUE_FINAL_MESSAGE_TAG ", "\ttabs ", "Four", "\\n",
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "description": 'adds "two"', "parameters": {
    "type": "object", "required": ["a"],
    "properties": {"a": {"type": "integer", "description": "é"}, "b": {"type": "number", "enum": [1, 2.5]}},
}}}]  # fmt: skip
# A template of the kind of DeepSeek-R1's distills: the prompt opens thoughts that no finished answer shows.
THINKING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}"
    "<A>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<A><think>\n{% endif %}"
)


@pytest.fixture
def templates(shared: Path) -> dict[str, ChatTemplate]:
    """The published templates, by file."""
    templates, folder = {}, shared / "published" / "configs"
    for file in sorted(folder.glob("*chat_template*")) + sorted(folder.glob("*tokenizer_config*.json")):
        text = file.read_text(encoding="utf-8")
        source = json.loads(text).get("chat_template") if file.suffix == ".json" else text
        for number, one in enumerate(source if isinstance(source, list) else [source]):
            one = one["template"] if isinstance(one, dict) else one
            if one and "{%" in one:  # and no link to a file of another repository
                templates[f"{file.name}-{number}" if number else file.name] = ChatTemplate(one, TOKENS)
    return templates


def conversation(
    draw: random.Random, template: ChatTemplate
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages with what the template reads of thoughts, tool calls and names, and perhaps tools."""
    reads_tools = template.reads("tools") and template.reads("tool_calls")
    tools = TOOLS if reads_tools and draw.random() < 0.5 else None
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": draw.choice(TEXTS)})
    for _ in range(draw.randint(1, 3)):
        user: dict[str, Any] = {"role": "user", "content": draw.choice(TEXTS)}
        messages.append(user | ({"name": "Ann"} if template.reads("name") and draw.random() < 0.3 else {}))
        answer: dict[str, Any] = {"role": "assistant", "content": draw.choice(TEXTS), "refusal": None}
        if (named := [name for name in REASONING if template.reads(name)]) and draw.random() < 0.5:
            answer[draw.choice(named)] = draw.choice(TEXTS)
        if tools and draw.random() < 0.6:
            call = {
                "type": "function",
                "id": "call12345",
                "function": {"name": "add", "arguments": {"b": 2.5, "a": 1, "é": ["x", None]}},
            }
            messages.append(answer | {"tool_calls": [call], "content": draw.choice(("", "So", None))})
            result = {"role": "tool", "content": "3", "tool_call_id": "call12345"}
            messages.append(result | ({"name": "add"} if template.reads("name") else {}))
        messages.append(answer)
    return messages[: draw.choice((len(messages), len(messages) - 1))], tools


def expected(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """The text of transformers, of messages without keys of null but their content; None where the template fails."""
    present = [
        {key: value for key, value in message.items() if value is not None or key == "content"} for message in messages
    ]
    try:
        (text,), _ = render_jinja_template(
            conversations=[present], chat_template=template.source, **options, **template.tokens
        )
    except Exception:  # whatever a template raises of its own
        return None
    return text


@pytest.mark.parametrize("draws", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_published_templates_render_as_in_transformers(templates: dict[str, ChatTemplate], draws: int) -> None:
    same = refused = 0
    for name, template in templates.items():
        draw = random.Random(name)
        rendered = 0
        for _ in range(draws):
            messages, tools = conversation(draw, template)
            for prompt in (True, False):
                text = expected(template, messages, tools=tools, add_generation_prompt=prompt)
                if text is None:
                    with pytest.raises(DataError):
                        template.render(messages, prompt, tools)
                    refused += 1
                else:
                    assert template.render(messages, prompt, tools) == text, (name, messages)
                    rendered += 1
        assert rendered or draws < 25, name
        same += rendered
    assert len(templates) > 40 and same > 60 * draws and refused < same


@pytest.mark.parametrize("draws", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_a_message_of_published_templates_is_continued_as_in_transformers(
    templates: dict[str, ChatTemplate], draws: int
) -> None:
    continued = 0
    for name, template in templates.items():
        draw = random.Random(name)
        for _ in range(draws):
            messages, tools = conversation(draw, template)
            if not messages[-1].get("content"):
                continue
            text = expected(template, messages, tools=tools, continue_final_message=True)
            if text is None:
                with pytest.raises(DataError):
                    template.render_continued(messages, tools)
            else:
                assert template.render_continued(messages, tools) == text, (name, messages)
                continued += 1
    assert continued > 20 * draws


def test_every_published_template_can_be_trained(templates: dict[str, ChatTemplate]) -> None:
    """What is learned of an answer is all of it, and what ends it."""
    tokenizer = train_tokenizer("bytes", [], None)
    user = {"role": "user", "content": "What is 2 + 2?"}
    for name, template in templates.items():
        for content in ("It is four.", "<think>\nhm\n</think>\n\nIt is four."):
            talk = [user, {"role": "assistant", "content": content}]
            if expected(template, talk) is None:
                continue
            prompt, answered = prompt_and_answer(talk[:1], talk[1:], template)
            assert answered.startswith(prompt) and "It is four." in answered[len(prompt) :], name
            rows = conversation_rows([*talk, *talk], template, tokenizer, name)
            learned = "".join(
                tokenizer.decode([id for id, is_answer in zip(row.ids, row.is_answer, strict=True) if is_answer])
                for row in rows
            )
            assert learned.count("It is four.") == 2, name


def test_thoughts_that_a_template_opens_in_the_prompt_are_learned() -> None:
    template = ChatTemplate(THINKING, TOKENS)
    user = {"role": "user", "content": "2+2"}
    for content, prompt, answer in (
        ("4", "<s><U>2+2<A>", "4</s>"),
        ("hm</think>4", "<s><U>2+2<A><think>\n", "hm</think>4</s>"),
        ("<think>\nhm</think>4", "<s><U>2+2<A><think>\n", "hm</think>4</s>"),
    ):
        answers = [{"role": "assistant", "content": content}]
        assert prompt_and_answer([user], answers, template) == (prompt, prompt + answer)
    with pytest.raises(DataError, match="does not render the answer right after its prompt"):
        prompt_and_answer([user], answers, ChatTemplate("{{ messages | length }}", {}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "Ann"),
        ("tool_calls", [{"id": "1"}]),
        ("reasoning_content", "hm"),
        ("thinking", "hm"),
        ("of_tomorrow", 1),
    ],
)
def test_what_a_template_does_not_read_is_refused_by_its_place(key: str, value: Any) -> None:
    template = ChatTemplate(THINKING, TOKENS)
    message = {"role": "user", "content": "2+2"}
    with pytest.raises(DataError) as caught:
        template.render([message, message | {key: value}])
    assert str(caught.value) == f"messages[1].{key}: is not used by the model's chat template; remove it"
    plain = template.render([message])
    assert template.render([message | {key: None, "tool_call_id": "1"}]) == plain
    reading = ChatTemplate(THINKING + "{{ messages[0]." + key + " }}", TOKENS)
    assert reading.render([message | {key: value}]) == plain + str(value)
    with pytest.raises(DataError, match=r"^tools: is not used by"):
        template.render([message], tools=TOOLS)


@pytest.mark.parametrize("arguments", [
    "", "indent=2", "separators=(',', ':')", "sort_keys=true", "ensure_ascii=true", "indent='\t', sort_keys=true",
    "true, 1, ('; ', ' = '), true",
])  # fmt: skip
def test_json_is_written_as_in_transformers(arguments: str) -> None:
    source = f"{{{{ messages[0] | tojson({arguments}) }}}}"
    message = {"role": "user", "content": "é<'\"", "b": [1, 2.5, None, {"z": 1, "a": {}}]}
    template = ChatTemplate(source + "{# b #}", {})
    assert template.render([message]) == expected(template, [message])


FORMS = {  # of calls, by the published file: what stands before a name, and what leads to the next one
    "Qwen__Qwen3-4B_sophgo.tokenizer_config.json": (
        '<tool_call>\n{"name": "', '}\n</tool_call>\n<tool_call>\n{"name": "',
    ),
    "LGAI-EXAONE__EXAONE-4.0-1.2B.chat_template.jinja": (
        '<tool_call>{"name": "', '}</tool_call>\n<tool_call>{"name": "',
    ),
    "meta-llama__Llama-3.2-3B-Instruct_mediatek.tokenizer_config.json": ('{"name": "', None),
    "openai__gpt-oss-20b.chat_template.jinja": (" to=functions.", None),
    "google__gemma-4-E2B-it.chat_template.jinja": ("<|tool_call>call:", "<tool_call|><|tool_call>call:"),
    "zai-org__GLM-4.5.chat_template.jinja": ("<tool_call>", "</arg_value>\n</tool_call>\n<tool_call>"),
    "Qwen__Qwen3.5-0.8B.chat_template.jinja": (
        "<tool_call>\n<function=", "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=",
    ),
}  # fmt: skip
CALLED = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}, "c": {"type": "number"}}}
CALLABLE = [{"type": "function", "function": {"name": name, "description": "x", "parameters": CALLED}} for name in "fg"]


def test_calls_as_transformers_writes_them_are_read_back(templates: dict[str, ChatTemplate]) -> None:
    """In every template that declares tools and writes calls; the form is known for some."""
    read: dict[str, str] = {}
    for name, template in templates.items():
        if not (template.reads("tools") and template.reads("tool_calls")):
            with pytest.raises(DataError, match=r"^tools: the model's chat template does not read tool"):
                tool_form(template)
            continue
        if template.source in read:
            continue
        read[template.source] = name
        form, draw = tool_form(template), random.Random(name)
        if name in FORMS:
            assert (form.before_name, form.next_name) == FORMS[name]
        for number in range(1, 3 if form.next_name is not None else 2):
            values = {"a": draw.choice(TEXTS[:7]), "b": [1, True, "x"], "c": draw.choice((1, 2.5))}
            calls = [
                (one, {key: values[key] for key in draw.sample("abc", draw.randint(0, 3))}) for one in "fg"[:number]
            ]
            sent = [{"type": "function", "id": f"abcdefgh{place}", "function": {"name": one, "arguments": arguments}}
                    for place, (one, arguments) in enumerate(calls)]  # fmt: skip
            user = {"role": "user", "content": "Do it"}
            text = expected(template, [user, {"role": "assistant", "content": "", "tool_calls": sent}], tools=CALLABLE)
            assert text is not None
            _, calls_read = read_calls(form, dict.fromkeys("fg", CALLED), text[text.rindex("Do it") :])
            assert calls_read == calls, name
    assert FORMS.keys() <= {*read.values()} and len(read) > 12


def test_published_templates_that_write_in_order_are_rendered_once(templates: dict[str, ChatTemplate]) -> None:
    """All beginnings of a conversation by one rendering are what transformers makes of each."""
    once = 0
    for name, template in templates.items():
        draw = random.Random(name)
        talk = [{"role": ("user", "assistant")[number % 2], "content": draw.choice(TEXTS)} for number in range(5)]
        for prompted in (True, False):
            if (beginnings := template.beginnings(talk, prompted)) is not None:
                once += 1
                for count in (1, 2, 5):
                    text = expected(template, talk[:count], add_generation_prompt=prompted)
                    assert beginnings.render(count) == text, name
    assert once > 10
