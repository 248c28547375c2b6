"""Parsing of tool calls while an answer is generated, in the format of the model's chat template."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archetype.tokenizers.argument_schema import typed_argument
from archetype.tokenizers.notation import Incomplete, read_notation, scalar
from archetype.tokenizers.tool_form import ID, JSON_QUOTES, ToolForm

NO, OPEN = -1, -2  # a literal does not match: the text differs, or may still become it
NAME = re.compile(r"\s*([\w-]*)")


@dataclass(frozen=True)
class CallPiece:
    """Piece of a tool call.

    Attributes:
        index: index of the call in the answer.
        name: function name, in the first piece of a call; otherwise None.
        arguments: next characters of the JSON arguments.
    """

    index: int
    name: str | None
    arguments: str = ""


Piece = str | CallPiece  # text of the answer's content, or a piece of a call


def follow(literal: str, text: str, position: int) -> int:
    """Return the end of a literal that starts at a position, ignoring whitespace; NO or OPEN if it does not match."""
    for character in "".join(literal.split()):
        while position < len(text) and text[position].isspace():
            position += 1
        if character == ID:
            while position < len(text) and re.fullmatch(r"[\w.:-]", text[position]):
                position += 1
            continue
        if position == len(text):
            return OPEN
        if text[position] != character:
            return NO
        position += 1
    return position


def read_calls(
    form: ToolForm, functions: Mapping[str, Mapping[str, Any]], answer: str
) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content of an answer, and the name and arguments of each call (as text if they are not JSON)."""
    parser = ToolCallParser(form, functions)
    pieces = [*parser.push(answer), *parser.finish()]
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            name, arguments = calls.pop() if piece.name is None else (piece.name, "")
            calls.append((name, arguments + piece.arguments))
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [(name, scalar(arguments)) for name, arguments in calls]


class ToolCallParser:
    """Incremental parser that separates an answer into content and tool calls.

    Text that begins like a call but continues differently, or names an unknown function, is content.

    Args:
        form: format of the model's template.
        functions: JSON schema of the arguments of each function, by name.
        has_one: whether everything after the first call is dropped.
        has_content: whether text before the first call is kept.
    """

    def __init__(
        self,
        form: ToolForm,
        functions: Mapping[str, Mapping[str, Any]],
        has_one: bool = False,
        has_content: bool = True,
    ) -> None:
        self._form, self._functions, self._has_one, self._has_content = form, functions, has_one, has_content
        self.num_calls = 0
        self._text = ""  # not yet assigned to content or a call
        self._place = 0  # position in _text after the literals and values read so far
        self._state, self._name = self._content, ""
        self._pairs: dict[str, Any] = {}
        self._key = ""
        self._ends = (form.next_name, form.after)
        self._depth, self._in_text, self._is_escaped = 0, False, False
        self._pieces: list[Piece] = []
        self._is_over = False  # whether the answer has ended

    def push(self, text: str) -> list[Piece]:
        """Add text, and return the pieces of content and calls that are now certain."""
        self._text += text
        while self._state():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> list[Piece]:
        """Return the remaining pieces at the end of the answer."""
        self._is_over = True
        pieces = self.push("")
        if self._state in (self._content, self._function, self._begin):  # drop a call that has begun
            left = self._text
            pieces += [left] if left and not (self.num_calls and left.isspace()) else []
        return pieces

    def _content(self) -> bool:
        # content extends to where a call may begin
        start = end = NO
        for start in range(len(self._text)):
            if (end := follow(self._form.before_name, self._text, start)) != NO:
                break
        before = self._text[:start] if end != NO else self._text
        if before and (self.num_calls or self._has_content):
            self._pieces.append(before)
        self._text = self._text[len(before) :]
        if end in (NO, OPEN):
            return False
        self._place, self._state = end - len(before), self._function
        return True

    def _function(self) -> bool:
        match = NAME.match(self._text, self._place)
        assert match is not None
        if match.end() == len(self._text) and not self._is_over:
            return False
        if match[1] not in self._functions:
            return self._reject()
        self._name, self._place, self._state = match[1], match.end(), self._begin
        return True

    def _begin(self) -> bool:
        # if the text up to the arguments matches, it is certainly a call
        form, pairs = self._form, self._form.pairs
        end = follow(form.before_arguments, self._text, self._place)
        if end >= 0 and pairs is not None:
            self._start_call()
            self._place, self._pairs, self._state = end, {}, self._pair_key
            return True
        if end >= 0:
            rest = self._text[end:].lstrip()
            if rest.startswith("{"):
                self._start_call()
                self._text, self._place = rest, 0
                self._depth, self._in_text, self._state = 0, False, self._object
                return True
            end = NO if rest else OPEN
        if pairs is not None:
            none = (pairs.next_after_none, pairs.after_none)
            if self._end_of(none, self._place) >= 0:
                self._start_call("{}")
                self._ends, self._state = none, self._after
                return True
            end = max(end, self._end_of(none, self._place), key=lambda state: state == OPEN)
        return False if end == OPEN and not self._is_over else self._reject()

    def _start_call(self, arguments: str = "") -> None:
        self._pieces.append(CallPiece(self.num_calls, self._name, arguments))
        self.num_calls += 1
        self._ends = (self._form.next_name, self._form.after)

    def _reject(self) -> bool:
        # the first character of an apparent call is content; search again after it
        self._pieces.append(self._text[0])
        self._text, self._place, self._state = self._text[1:], 0, self._content
        return True

    def _arguments(self, text: str) -> None:
        if text:
            self._pieces.append(CallPiece(self.num_calls - 1, None, text))

    def _object(self) -> bool:
        # JSON is passed on as it arrives
        if self._form.quotes != JSON_QUOTES:
            try:
                value, end = read_notation(self._text, 0, self._form.quotes)
            except Incomplete:
                return False
            self._arguments(json.dumps(value, ensure_ascii=False))
            self._place, self._state = end, self._after
            return True
        for position, character in enumerate(self._text, start=1):
            self._scan(character)
            if not self._depth:
                self._arguments(self._text[:position])
                self._place, self._state = position, self._after
                return True
        self._arguments(self._text)
        self._text = ""
        return False

    def _scan(self, character: str) -> None:
        if self._in_text:
            if self._is_escaped:
                self._is_escaped = False
            else:
                # a backslash escapes the next character, such as a quote
                self._is_escaped, self._in_text = character == "\\", character != '"'
        elif character == '"':
            self._in_text = True
        else:
            self._depth += (character in "{[") - (character in "}]")

    def _pair_key(self) -> bool:
        pairs = self._form.pairs
        assert pairs is not None
        for start in range(self._place, len(self._text)):
            if (end := follow(pairs.between, self._text, start)) >= 0:
                self._key, self._place, self._state = self._text[self._place : start].strip(), end, self._pair_value
                return True
            if end == OPEN:
                return False
        return False

    def _pair_value(self) -> bool:
        # a value extends to the next key or the end of the call
        pairs = self._form.pairs
        assert pairs is not None
        ends = (pairs.next_pair, *self._ends)
        for start in range(self._place, len(self._text)):
            if self._text[start].isspace():
                continue
            next_key = follow(pairs.next_pair, self._text, start)
            end = self._end_of(ends, start)
            if end == OPEN and not (self._is_over and next_key == NO):
                return False
            if end == NO:
                continue
            value = _without(self._text[self._place : start], pairs.between, pairs.next_pair)
            self._pairs[self._key] = typed_argument(value, self._functions[self._name], self._key)
            if next_key >= 0:
                self._place, self._state = next_key, self._pair_key
            else:
                self._arguments(json.dumps(self._pairs, ensure_ascii=False))
                self._place, self._state = start, self._after
            return True
        return False

    def _end_of(self, literals: tuple[str | None, ...], position: int) -> int:
        # the furthest literal that matches; OPEN if one still may match
        ends = [follow(literal, self._text, position) for literal in literals if literal is not None]
        return max((end for end in ends if end >= 0), default=OPEN if OPEN in ends else NO)

    def _after(self) -> bool:
        next_name, after = self._ends  # the call is followed by another one, or ends
        next_call = NO if next_name is None else follow(next_name, self._text, self._place)
        ended = follow(after, self._text, self._place)
        if self._has_one:
            self._text, self._place, self._state = "", 0, self._nothing
            return False
        if next_call >= 0:
            self._place, self._state = next_call, self._function
            return True
        if OPEN in (next_call, ended):
            return False
        self._text, self._place, self._state = self._text[max(ended, self._place) :], 0, self._content
        return True

    def _nothing(self) -> bool:
        self._text = ""
        return False


def _without(value: str, before: str, behind: str) -> str:
    # the white space of the surrounding literals
    value = value.removeprefix(before[len(before.rstrip()) :])
    return value.removesuffix(behind[: len(behind) - len(behind.lstrip())])
