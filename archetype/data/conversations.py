"""Conversations through a chat template, as the tokens that a model reads and those that it is to write."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """

    ids: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)
    text: str = ""

    def extend(self, text: str, is_answer: bool, tokenizer: Tokenizer) -> None:
        """Go on with a text that begins with the row's; tokens are as of the whole, where the earlier ones stay.

        Of an answer, what follows its last special token belongs to the template: the model stops at that token.
        """
        whole = tokenizer.encode_with_special_tokens(text)
        known = len(self.ids)
        new = whole[known:] if whole[:known] == self.ids else None
        if new is None:
            new = tokenizer.encode_with_special_tokens(text[len(self.text) :])
        special = set(tokenizer.special_tokens.values())
        last = max((place for place, id in enumerate(new) if id in special), default=len(new) - 1)
        self.ids += new
        self.is_answer += [is_answer and place <= last for place in range(len(new))]
        self.text = text

    def arrays(self, longest: int) -> tuple[Tokens, npt.NDArray[np.bool_]]:
        """Tokens and marks, cut to `longest`."""
        return np.array(self.ids[:longest], dtype=np.int32), np.array(self.is_answer[:longest], dtype=np.bool_)


def conversation_rows(
    messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer, place: str
) -> list[Row]:
    """A conversation as the model meets it: for each answer, the text that its prompt has, and then the answer.

    One row holds all answers where the template adds to what it wrote before. Where it does not (some leave earlier
    thoughts out), each answer begins a row of its own.

    Args:
        messages: each with its role and its content.
        template: renders them.
        tokenizer: reads what it renders.
        place: of the conversation, for errors.

    Raises:
        DataError: the conversation is damaged or has no answer, or the template fails.
    """
    _check(messages, place)
    rows, row = [], Row()
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = template.render(list(messages[:number]))
        answered = template.render(list(messages[: number + 1]), add_generation_prompt=False)
        if not answered.startswith(prompt):
            cause = "renders an answer that does not begin where its prompt ends"
            raise DataError("chat template", cause, "fix the template")
        if not prompt.startswith(row.text):
            rows.append(row)
            row = Row()
        row.extend(prompt, False, tokenizer)
        row.extend(answered, True, tokenizer)
    return [*rows, row]


def _check(messages: Sequence[Message], place: str) -> None:
    """Refuse what is no list of messages with a role and a content, or has no answer."""
    is_list = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    texts = [message.get(key) for message in messages for key in ("role", "content")] if is_list else [None]
    if not all(isinstance(text, str) for text in texts):
        remedy = 'write {"messages": [{"role": "user", "content": ...}, ...]}'
        raise DataError(place, "is not a list of messages with a role and a content", remedy)
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(place, "has no answer of the role assistant", "add one, or remove the conversation")
