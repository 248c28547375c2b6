"""Inference of how a chat template writes tool calls from its rendered text, independent of the model's name."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from archetype.errors import DataError
from archetype.tokenizers.chat_template import ChatTemplate, Message
from archetype.tokenizers.tool_calls import read_calls
from archetype.tokenizers.tool_form import ID, JSON_QUOTES, Pairs, ToolForm

USER: Message = {"role": "user", "content": "Hi"}
NAMES, IDS = ("first_q7x", "second_q7x"), ("q7xcall01", "q7xcall02")  # 9 letters and digits, as Mistral requires
KEYS, VALUES = ("key_a_q7x", "key_b_q7x"), ("val_a_q7x", "val_b_q7x")
ARGUMENTS = dict(zip(KEYS, VALUES, strict=True))
TRIED: tuple[dict[str, Any], ...] = (  # calls that an inferred format must reproduce
    {KEYS[0]: 'a "text" <b>\n\\', KEYS[1]: {"x": [1, 2.5, True], "y": "z"}},
    {},
    {KEYS[0]: "{", KEYS[1]: {}},
)
SCHEMA = {
    "type": "object",
    "required": [],
    "properties": {KEYS[0]: {"type": "string", "description": "x"}, KEYS[1]: {"type": "object", "description": "x"}},
}
TOOLS = [{"type": "function", "function": {"name": name, "description": "x", "parameters": SCHEMA}} for name in NAMES]


def tool_form(template: ChatTemplate) -> ToolForm:
    """Return the format in which a template writes tool calls.

    Raises:
        DataError: the template writes no calls, or writes them in a format that cannot be parsed.
    """
    return _tool_form(template.for_tools(TOOLS).source, tuple(sorted(template.tokens.items())))


@lru_cache(maxsize=64)
def _tool_form(source: str, tokens: tuple[tuple[str, str], ...]) -> ToolForm:
    template = ChatTemplate(source, dict(tokens))
    for key in ("tools", "tool_calls"):
        if not template.reads(key):
            cause = f"the model's chat template does not read {key}"
            raise DataError("tools", cause, "remove them, or use a model that was trained to call tools")
    cause = "the format in which the model's chat template writes calls cannot be inferred"
    for takes_text in (False, True):
        try:
            if (form := _Renderings(template, takes_text).form()) is not None:
                return form
        except DataError as error:
            cause = cause if takes_text else f"the model's chat template refuses a call: {error.cause}"
    raise DataError("tools", cause, "remove them")


class _Renderings:
    # of marked calls; `takes_text` passes arguments as JSON text
    def __init__(self, template: ChatTemplate, takes_text: bool) -> None:
        self._template, self._takes_text = template, takes_text
        self._prompt = template.render([USER], tools=TOOLS)
        self._head, self._tail = template.around_content([USER], {"role": "assistant"}, TOOLS)

    def form(self) -> ToolForm | None:
        # the answer begins after the generation prompt, or where the rendering of an answer starts
        text = self.calls(ARGUMENTS)
        start = next((len(beginning) for beginning in (self._head, self._prompt) if text.startswith(beginning)), None)
        if start is None or (name := text.find(NAMES[0], start)) < 0:
            return None
        opening = text[len(self._prompt) : name] if text.startswith(self._prompt) else text[start:name]
        for read_off in (self._of_object, self._of_pairs):
            form = read_off(opening, text[start:name], text[name:])
            if form is not None and form.before_name.strip() and self._is_proven(form, start):
                return form
        return None

    def _is_proven(self, form: ToolForm, start: int) -> bool:
        # other calls, alone and together, must be parsed as they were given
        several = [(call,) for call in TRIED] + ([TRIED[:2], TRIED[1:]] if form.next_name is not None else [])
        functions = dict.fromkeys(NAMES, SCHEMA)
        return all(
            read_calls(form, functions, self.calls(*group)[start:])[1]
            == [(name, call) for name, call in zip(NAMES, group, strict=False)]
            for group in several
        )

    def calls(self, *arguments: Mapping[str, Any]) -> str:
        calls = [
            {
                "type": "function",
                "id": id,
                "function": {
                    "name": name,
                    "arguments": json.dumps(value) if self._takes_text else value,
                },
            }
            for name, id, value in zip(NAMES, IDS, arguments, strict=False)
        ]
        return self._render({"role": "assistant", "content": "", "tool_calls": calls})

    def _render(self, message: Message) -> str:
        return self._template.render([USER, message], False, TOOLS)

    def _second(self, arguments: Mapping[str, Any], end: str) -> str | None:
        try:
            text = self.calls(arguments, arguments)
        except DataError:
            return None
        # from the end: a template lists the tools, with their names, before the calls
        first, second = text.rfind(NAMES[0]), text.rfind(NAMES[1])
        if second < first or (position := text.rfind(end, first, second)) < 0:
            return None
        return _literal(text[position + len(end) : second])

    def _after(self, text: str) -> str:
        return _literal(text.removesuffix(self._tail) if self._tail else text)

    def _of_object(self, opening: str, before_name: str, text: str) -> ToolForm | None:
        # a call whose arguments are one object, in JSON or with other quotes
        rest = text[len(NAMES[0]) :]
        for position in (brace.start() for brace in re.finditer("{", rest)):
            try:
                value, length = json.JSONDecoder().raw_decode(rest[position:])
            except ValueError:
                continue
            if value == ARGUMENTS:
                written, quotes = rest[position : position + length], JSON_QUOTES
                break
        else:
            pattern = "({" + KEYS[0] + r":(\S+)" + VALUES[0] + r"(\S+)," + KEYS[1] + r":\2" + VALUES[1] + r"\3})"
            if (match := re.search(pattern, rest)) is None:
                return None
            position, written, quotes = match.start(), match[1], (match[2], match[3])
        after = self._after(rest[position + len(written) :])
        next_name = self._second(ARGUMENTS, written)
        return ToolForm(
            _literal(opening),
            _literal(before_name),
            _literal(rest[:position]),
            after,
            next_name,
            None,
            quotes,
            self._takes_text,
        )

    def _of_pairs(self, opening: str, before_name: str, text: str) -> ToolForm | None:
        # a call whose arguments are written one by one
        pattern = f"{NAMES[0]}(.*?){KEYS[0]}(.+?){VALUES[0]}(.+?){KEYS[1]}(.+?){VALUES[1]}(.*)"
        if (match := re.fullmatch(pattern, text, re.DOTALL)) is None or match[2] != match[4]:
            return None
        none = self.calls({})
        none = none[none.rfind(NAMES[0]) + len(NAMES[0]) :]
        pairs = Pairs(match[2], match[3], self._after(none), self._second({}, NAMES[0]))
        return ToolForm(
            _literal(opening),
            _literal(before_name),
            _literal(match[1]),
            self._after(match[5]),
            self._second(ARGUMENTS, VALUES[1]),
            pairs,
            takes_text=self._takes_text,
        )


def _literal(text: str) -> str:
    return re.sub("|".join(IDS), ID, text)
