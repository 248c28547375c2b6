"""Calls in answers: however a text is cut, what is no call is content, and no sign is lost."""

import json
import random
from typing import Any

import pytest

from archetype.errors import DataError
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.notation import Incomplete, read_notation
from archetype.tokenizers.tool_calls import CallPiece, ToolCallParser, read_calls
from archetype.tokenizers.tool_form import ToolForm
from archetype.tokenizers.tool_rendering import tool_form
from tests.helpers.tool_templates import TEMPLATES, UNREADABLE

SCHEMA = {"type": "object", "properties": {"s": {"type": ["string", "null"]}, "x": {"anyOf": [{"$ref": "#/$defs/n"}]}},
          "$defs": {"n": {"type": "integer"}}}  # fmt: skip
FUNCTIONS = {"f": SCHEMA, "g": {}}


def parsed(form: ToolForm, text: str, cuts: list[int], **options: Any) -> tuple[str, list[tuple[str, str]]]:
    """The content of a text that comes in pieces, and its calls."""
    parser, pieces = ToolCallParser(form, FUNCTIONS, **options), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += parser.push(text[start:end])
    pieces += parser.finish()
    content, calls = "", list[tuple[str, str]]()
    for piece in pieces:
        if isinstance(piece, CallPiece):
            name, before = (piece.name, "") if piece.name is not None else calls.pop()
            calls.append((name, before + piece.arguments))
        else:
            content += piece
    return content, calls


def answer(name: str, content: str, calls: list[tuple[str, Any]]) -> str:
    """What a template writes."""
    user, takes_text = {"role": "user", "content": "Hi"}, tool_form(TEMPLATES[name]).takes_text
    sent = [{"type": "function", "id": f"abcdefgh{place}", "function": {
        "name": one, "arguments": json.dumps(arguments) if takes_text else arguments}}
        for place, (one, arguments) in enumerate(calls)]  # fmt: skip
    whole = TEMPLATES[name].render([user, {"role": "assistant", "content": content, "tool_calls": sent}], False)
    return whole.removeprefix(TEMPLATES[name].render([user])).removesuffix("</s>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_does_not_matter_where_a_text_is_cut(name: str) -> None:
    form, draw = tool_form(TEMPLATES[name]).until(["</s>"]), random.Random(name)
    for _ in range(15):
        values = {"s": draw.choice(('a "b"', "\\ é\n{", "<", "")), "x": 7, "y": {"z": [None, 1.5, "w"]}}
        calls = [(draw.choice("fg"), {key: values[key] for key in draw.sample("sxy", draw.randint(0, 3))})
                 for _ in range(1 if form.next_name is None else draw.randint(1, 3))]  # fmt: skip
        content = "" if name == "mistral" else draw.choice(("", 'So {"name": "f" <call>f ', "a\n\nb"))
        text = answer(name, content, calls)
        whole = parsed(form, text, [])
        assert (whole[0].strip(), [(one, json.loads(arguments)) for one, arguments in whole[1]]) == (
            content.strip(),
            calls,
        )
        for _ in range(6):
            assert parsed(form, text, sorted(draw.choices(range(len(text)), k=draw.randint(1, 30)))) == whole


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_no_call_is_content_to_the_last_sign(name: str) -> None:
    form, draw = tool_form(TEMPLATES[name]).until(["</s>"]), random.Random(name)
    call = answer(name, "", [("f", {"s": "a"})])
    texts = [
        call.replace("f", "h", 1) if name != "mistral" else call.replace('"f"', '"h"'),  # of no function
        form.before_name, form.before_name * 3, f"{form.before_name}f", f" {form.before_name}f and g\n", "{}", "  ", "",
    ]  # fmt: skip
    for text in texts:
        if "f" in form.before_name and text == texts[0]:
            continue
        cuts = sorted(draw.choices(range(len(text) + 1), k=4))
        assert parsed(form, text, cuts) == (text, [])


def test_white_space_is_the_models_own() -> None:
    form = tool_form(TEMPLATES["hermes"]).until(["</s>"])
    text = '<tool_call>{"name":"f","arguments":{ "s":"a" }}</tool_call>  '
    text += '<tool_call>\n\n{ "name" : "g" , "arguments" : {}}'
    assert parsed(form, text, [5]) == ("", [("f", '{ "s":"a" }'), ("g", "{}")])
    assert parsed(form, text, [5], has_one=True) == ("", [("f", '{ "s":"a" }')])
    assert parsed(form, f"thoughts {text}", [5], has_content=False)[0] == ""
    assert parsed(form, text[:40], [5]) == ("", [("f", '{ "s"')])  # cut by its limit: no more than was written


def test_values_without_quotes_are_of_their_schema() -> None:
    form = tool_form(TEMPLATES["pairs"]).until(["</s>"])
    for key, value, read in (
        ("s", "1", "1"), ("s", "null", None), ("x", "1", 1), ("x", "one", "one"), ("y", "[1, true]", [1, True]),
        ("y", "True", True), ("y", "None", None), ("y", "1 2", "1 2"),
    ):  # fmt: skip
        text = f"<call>f\n<key>{key}</key>\n<value>{value}</value>\n</call>"
        assert read_calls(form, FUNCTIONS, text) == ("", [("f", {key: read})])


def test_objects_with_quotes_of_their_own() -> None:
    quotes = ("<q>", "<q>")
    text = "{a:<q>x, {y}<q>, <q>b<q> : [1,true,None,{}],c:<q><q>,d:{e:-2.5}} and more"
    value, end = read_notation(text, 0, quotes)
    assert value == {"a": "x, {y}", "b": [1, True, None, {}], "c": "", "d": {"e": -2.5}} and text[end:] == " and more"
    for length in range(text.index(" and")):
        with pytest.raises(Incomplete):
            read_notation(text[:length], 0, quotes)
    with pytest.raises(Incomplete):
        read_notation("[" * 100 + "]" * 100, 0, quotes)


def test_a_template_whose_calls_cannot_be_read_is_refused() -> None:
    python = UNREADABLE.replace("{{ c.id }}", "{{ c.function.name }} {{ c.function.arguments.keys() | list }}")
    for source in (UNREADABLE, python, UNREADABLE.replace("{{ c.id }}", "{{ c.function.name }}")):
        with pytest.raises(DataError, match=r"^tools: the (form|model)"):
            tool_form(ChatTemplate(source, {}))
