"""Tokenize conversations rendered with a chat template, with a loss mask over answers."""

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
    """Token sequence with a loss mask.

    Attributes:
        is_answer: loss mask: whether each token is a target of the loss.
        is_whole: whether tokenizing the whole `text` at once gives `ids`.
        ends: numbers of tokens and characters in the row after each extension.
    """

    ids: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)
    text: str = ""
    is_whole: bool = True
    ends: list[tuple[int, int]] = field(default_factory=list)

    def extend(self, text: str, is_answer: bool, tokenizer: Tokenizer) -> None:
        """Extend the row to a longer text, which must start with the row's text."""
        new, special = self._new_tokens(text, tokenizer), set(tokenizer.special_tokens.values())
        # the model stops at the last special token of an answer, so the tokens after it are not targets
        last = max((index for index, id in enumerate(new) if id in special), default=len(new) - 1)
        self.ids += new
        self.is_answer += [is_answer and index <= last for index in range(len(new))]
        self.text = text
        self.ends.append((len(self.ids), len(text)))

    def _new_tokens(self, text: str, tokenizer: Tokenizer) -> list[int]:
        # tokenize from the last text but one if that reproduces the row's tokens, so that a long conversation is not
        # tokenized from its start for each answer; else from the start; else only the new text
        for tokens, characters in (*self.ends[-2:-1], (0, 0)) if self.is_whole else ():
            whole, known = tokenizer.encode_with_special_tokens(text[characters:]), self.ids[tokens:]
            if whole[: len(known)] == known:
                return whole[len(known) :]
        self.is_whole = False
        return tokenizer.encode_with_special_tokens(text[len(self.text) :])

    def arrays(self, longest: int) -> tuple[Tokens, npt.NDArray[np.bool_]]:
        """Return token ids and loss mask, both (T,), truncated to `longest` tokens."""
        return np.array(self.ids[:longest], dtype=np.int32), np.array(self.is_answer[:longest], dtype=np.bool_)


def conversation_rows(
    messages: Sequence[Message],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    place: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[Row]:
    """Tokenize a conversation as the model sees it: for each answer, its prompt followed by the answer.

    As in OpenAI's format, an answer with weight 0 is context but not a target.

    Raises:
        DataError: the conversation, located at `place`, is malformed or has no answer, or the template fails.
    """
    _check(messages, place)
    weights = [message.get("weight", 1) for message in messages]
    messages = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    rows, row = [], Row()
    texts = _texts(messages, template, tools)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, answered = texts(index) or prompt_and_answer(messages[:index], [message], template, tools)
        # One row holds all answers if each prompt extends the text before it. Some templates drop earlier reasoning:
        # the answer then begins a new row.
        if not prompt.startswith(row.text):
            rows.append(row)
            row = Row()
        row.extend(prompt, False, tokenizer)
        row.extend(answered, weights[index] != 0, tokenizer)
    return [*rows, row]


def _texts(
    messages: Sequence[Message], template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None
) -> Callable[[int], tuple[str, str] | None]:
    # index of an answer -> (its prompt, the text including the answer), rendered once for all answers; None if both
    # must be rendered separately, because the template reorders messages or refuses one of them
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    try:
        prompts, answered = (template.beginnings(messages[: last + 1], prompted, tools) for prompted in (True, False))
    except DataError:  # rendering the prompts one by one raises the error again
        prompts = answered = None

    def texts(index: int) -> tuple[str, str] | None:
        if prompts is None or answered is None or index == 0:
            return None
        pair = prompts.render(index), answered.render(index + 1)
        return pair if pair[1].startswith(pair[0]) else None

    return texts


def prompt_and_answer(
    messages: Sequence[Message],
    answer: Sequence[Message],
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[str, str]:
    """Return the prompt that an answer is trained on, and the prompt with the answer appended."""
    prompt = template.render(messages, tools=tools)
    answered = template.render([*messages, *answer], False, tools)
    # With most templates the rendered conversation starts with the generation prompt. Some (DeepSeek-R1's distills)
    # open a reasoning block in the prompt that finished answers do not show. There, an answer that is rendered in full
    # follows the template's answer header, and an answer whose reasoning the template would drop follows the generation
    # prompt.
    if answered.startswith(prompt):
        return prompt, answered
    first, *others = answer
    content = first.get("content") or ""
    head, tail = template.around_content(messages, first, tools)
    if answered.startswith(head) and (others or content.strip() in answered[len(head) :]):
        return head, answered
    if others or not prompt.startswith(head):
        cause = "does not render the answer right after its prompt"
        raise DataError("chat template", cause, "fix the template")
    # such as <think>, which the answer's content may repeat
    opening = prompt[len(head) :]
    for start in (opening, opening.strip()):
        content = content.removeprefix(start)
    return prompt, prompt + content + tail


def _check(messages: Sequence[Message], place: str) -> None:
    is_list = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    if not is_list or not all(
        isinstance(message.get("role"), str) and (isinstance(message.get("content"), str) or message.get("tool_calls"))
        for message in messages
    ):
        remedy = 'write {"messages": [{"role": "user", "content": ...}, ...]}'
        raise DataError(place, "is not a list of messages with a role and a content", remedy)
    if any(message.get("weight", 1) not in (0, 1) for message in messages):
        raise DataError(place, "has a weight other than 0 and 1", "set it to 0 or 1, or remove it")
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(
            place, "has no message of role assistant", "add an assistant message, or remove the conversation"
        )
