"""The parts of answers: their objects, and tokens with their log-probabilities."""

import secrets
import time
from collections.abc import Callable
from typing import Any

from archetype.apps.serve.errors import encode_json
from archetype.apps.serve.generation import best
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event, Logprobs


class Envelope:
    """The fields that all objects of one answer share.

    Args:
        model: that answers.
        prefix: of the id.
        object: what the objects are called.
    """

    def __init__(self, model: ServedModel, prefix: str, object: str) -> None:
        self.fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": object,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def holding(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An object with these choices."""
        return self.fields | {"choices": choices} | more

    def chunks(self, with_usage: bool) -> Callable[[str], bytes]:
        """A function that makes the event of a stream from a choice, as JSON; all else of it is the same in every one.

        Args:
            with_usage: whether the stream ends with the numbers of its tokens: then all others say that they have none.
        """
        head, _, tail = encode_json(self.holding([], **({"usage": None} if with_usage else {}))).partition("[]")
        return lambda choice: f"data: {head}[{choice}]{tail}\n\n".encode()


class CompletionLogprobs:
    """The log-probabilities of a text's tokens, as completions list them.

    Args:
        model: whose tokens they are.
        count: alternatives of each.
        offset: characters of the answer's text before them.
    """

    def __init__(self, model: ServedModel, count: int, offset: int = 0) -> None:
        self._model, self._count, self._offset = model, count, offset
        self._rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []

    def add(self, token: int, text: str, logprobs: Logprobs | None) -> None:
        """A token, and the text that became certain with it; the first of a text has no log-probability."""
        name, alternatives = self._name(token), None
        if logprobs is not None:
            alternatives = dict[str, float]()
            for id, value in best(self._model, token, logprobs, self._count):
                key = self._name(id)  # of two tokens with one text the likelier counts
                alternatives[key] = max(value, alternatives.get(key, value))
        self._rows.append((name, None if logprobs is None else logprobs.logprob, alternatives, self._offset))
        self._offset += len(text)

    def take(self) -> dict[str, Any]:
        """All that was added since the last time."""
        columns = [list(column) for column in zip(*self._rows, strict=True)] or [[], [], [], []]
        self._rows = []
        return dict(zip(("tokens", "token_logprobs", "top_logprobs", "text_offset"), columns, strict=True))

    def _name(self, token: int) -> str:
        """A token's text; one within a character is written by its bytes, as OpenAI's API does."""
        data = self._model.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(model: ServedModel, event: Event, count: int) -> dict[str, Any]:
    """A token and its alternatives, as chat completions list them."""
    assert event.token is not None and event.logprobs is not None
    alternatives = list(event.logprobs.top[:count])
    return _entry(model, event.token, event.logprobs.logprob) | {
        "top_logprobs": [_entry(model, id, value) for id, value in alternatives]
    }


def _entry(model: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    data = model.bytes_of(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
