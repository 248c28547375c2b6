"""Conversations through a chat template, as the tokens that a model reads and those that it is to write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from archetype.data.batches import Tokens
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate, Message


@dataclass
class Row:
    """A text whose tokens are marked.

    Attributes:
        ids: its tokens.
        is_answer: whether the model is to write each of them.
        text: what they spell.
        is_whole: whether its tokens are those of its text as a whole.
        ends: after each piece that was added, how many tokens and characters there were.
    """

    ids: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)
    text: str = ""
    is_whole: bool = True
    ends: list[tuple[int, int]] = field(default_factory=list)

    def extend(self, text: str, is_answer: bool, tokenizer: Tokenizer) -> None:
        """Go on with a text that begins with the row's; tokens are as of the whole, where the earlier ones stay.

        Of an answer, what follows its last special token belongs to the template: the model stops at that token.
        """
        new = self._new_tokens(text, tokenizer)
        special = set(tokenizer.special_tokens.values())
        last = max((place for place, id in enumerate(new) if id in special), default=len(new) - 1)
        self.ids += new
        self.is_answer += [is_answer and place <= last for place in range(len(new))]
        self.text = text
        self.ends.append((len(self.ids), len(text)))

    def _new_tokens(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens behind those of the row: of the whole text, unless that would change earlier ones.

        The text is read from the last piece but one on, where that piece has the tokens that it has in the row: what is
        before it changes nothing then, and a long conversation is not read again for each answer.
        """
        for tokens, characters in (*self.ends[-2:-1], (0, 0)) if self.is_whole else ():
            whole, known = tokenizer.encode_with_special_tokens(text[characters:]), self.ids[tokens:]
            if whole[: len(known)] == known:
                return whole[len(known) :]
        self.is_whole = False
        return tokenizer.encode_with_special_tokens(text[len(self.text) :])

    def arrays(self, longest: int) -> tuple[Tokens, npt.NDArray[np.bool_]]:
        """Tokens and marks, cut to `longest`."""
        return np.array(self.ids[:longest], dtype=np.int32), np.array(self.is_answer[:longest], dtype=np.bool_)


def conversation_rows(
    messages: Sequence[Message],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    place: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[Row]:
    """A conversation as the model meets it: for each answer, the text that its prompt has, and then the answer.

    An answer of weight 0 is read and not learned, as OpenAI's files of conversations have it.

    One row holds all answers where the template adds to what it wrote before. Where it does not (some leave earlier
    thoughts out), each answer begins a row of its own.

    Args:
        messages: each with its role and its content.
        template: renders them.
        tokenizer: reads what it renders.
        place: of the conversation, for errors.
        tools: functions that answers may call, as JSON schemas.

    Raises:
        DataError: the conversation is damaged or has no answer, or the template fails.
    """
    _check(messages, place)
    weights = [message.get("weight", 1) for message in messages]
    messages = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    rows, row = [], Row()
    texts = _texts(messages, template, tools)
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, answered = texts(number) or prompt_and_answer(messages[:number], [message], template, tools)
        if not prompt.startswith(row.text):
            rows.append(row)
            row = Row()
        row.extend(prompt, False, tokenizer)
        row.extend(answered, weights[number] != 0, tokenizer)
    return [*rows, row]


def _texts(
    messages: Sequence[Message], template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None
) -> Callable[[int], tuple[str, str] | None]:
    """A function that gives the prompt of an answer, and the text with it, by its place; None where both are to be
    rendered by themselves: by a template that does not write messages in order, or refuses one of them.
    """
    last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    try:
        prompts, answered = (template.beginnings(messages[: last + 1], prompted, tools) for prompted in (True, False))
    except DataError:  # which the first beginning that has it says again
        prompts = answered = None

    def texts(number: int) -> tuple[str, str] | None:
        if prompts is None or answered is None or number == 0:
            return None
        pair = prompts.render(number), answered.render(number + 1)
        return pair if pair[1].startswith(pair[0]) else None

    return texts


def prompt_and_answer(
    messages: Sequence[Message],
    answer: Sequence[Message],
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[str, str]:
    """The text of a conversation that an answer is learned from, and the same with the answer behind it.

    Most templates render before an answer what they prompt it with. Some open thoughts in the prompt that no finished
    answer shows (DeepSeek-R1's distills). There an answer that is rendered whole follows what the template puts before
    it, and one whose thoughts the template would leave out follows the prompt, which is where the model writes them.

    Args:
        messages: before the answer.
        answer: its messages.
        template: renders them.
        tools: functions that an answer may call, as JSON schemas.

    Raises:
        DataError: the template fails, or puts the answer nowhere behind what comes before it.
    """
    prompt = template.render(messages, tools=tools)
    answered = template.render([*messages, *answer], False, tools)
    if answered.startswith(prompt):
        return prompt, answered
    first, *others = answer
    content = first.get("content") or ""
    one, two = (template.render([*messages, {**first, "content": text}], False, tools) for text in "01")
    length = next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    head = one[:length]  # what the template puts before a content
    if answered.startswith(head) and (others or content.strip() in answered[len(head) :]):
        return head, answered
    if others or not prompt.startswith(head):
        cause = "renders an answer that does not begin where its prompt ends"
        raise DataError("chat template", cause, "fix the template")
    opening = prompt[len(head) :]
    for start in (opening, opening.strip()):
        content = content.removeprefix(start)
    return prompt, prompt + content + one[length + 1 :]


def _check(messages: Sequence[Message], place: str) -> None:
    """Refuse what is no list of messages with a role and a content, or has no answer."""
    is_list = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    if not is_list or not all(
        isinstance(message.get("role"), str) and (isinstance(message.get("content"), str) or message.get("tool_calls"))
        for message in messages
    ):
        remedy = 'write {"messages": [{"role": "user", "content": ...}, ...]}'
        raise DataError(place, "is not a list of messages with a role and a content", remedy)
    if any(message.get("weight", 1) not in (0, 1) for message in messages):
        raise DataError(place, "has a weight that is neither 0 nor 1", "write one of them, or leave it out")
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(place, "has no answer of the role assistant", "add one, or remove the conversation")
