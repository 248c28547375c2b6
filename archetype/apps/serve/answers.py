"""Parts of responses: the common fields, and tokens with their log-probabilities."""

import secrets
import time
from collections.abc import Callable
from typing import Any

from archetype.apps.serve.errors import encode_json
from archetype.apps.serve.generation import best
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event, Logprobs


class Envelope:
    """Fields shared by all objects of one response.

    Args:
        model: the model that answers.
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
        """Return an object with these choices."""
        return self.fields | {"choices": choices} | more

    def chunks(self, with_usage: bool) -> Callable[[str], bytes]:
        """Return a function that turns a choice (as JSON) into a stream event; all other fields stay the same.

        Args:
            with_usage: whether the stream ends with a usage event; all other events then have `"usage": null`.
        """
        head, _, tail = encode_json(self.holding([], **({"usage": None} if with_usage else {}))).partition("[]")
        return lambda choice: f"data: {head}[{choice}]{tail}\n\n".encode()


class CompletionLogprobs:
    """Log-probabilities of a sequence in the format of the completions API.

    Args:
        model: whose tokens they are.
        count: number of alternatives per token.
        offset: characters of the answer's text before them.
    """

    def __init__(self, model: ServedModel, count: int, offset: int = 0) -> None:
        self._model, self._count, self._offset = model, count, offset
        self._rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []

    def add(self, token: int, text: str, logprobs: Logprobs | None) -> None:
        """Add a token and the text it completes; the first token of a sequence has no log-probability."""
        name, alternatives = self._name(token), None
        if logprobs is not None:
            alternatives = dict[str, float]()
            for id, value in best(self._model, token, logprobs, self._count):
                key = self._name(id)  # if two tokens have the same text, the likelier is kept
                alternatives[key] = max(value, alternatives.get(key, value))
        self._rows.append((name, None if logprobs is None else logprobs.logprob, alternatives, self._offset))
        self._offset += len(text)

    def take(self) -> dict[str, Any]:
        """Return what was added since the last call."""
        columns = [list(column) for column in zip(*self._rows, strict=True)] or [[], [], [], []]
        self._rows = []
        return dict(zip(("tokens", "token_logprobs", "top_logprobs", "text_offset"), columns, strict=True))

    def _name(self, token: int) -> str:
        """Return the text of a token; a token that is part of a character is written as bytes, as in OpenAI's API."""
        data = self._model.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(model: ServedModel, event: Event, count: int) -> dict[str, Any]:
    """Return a token and its alternatives in the format of the chat completions API."""
    assert event.token is not None and event.logprobs is not None
    alternatives = list(event.logprobs.top[:count])
    return _entry(model, event.token, event.logprobs.logprob) | {
        "top_logprobs": [_entry(model, id, value) for id, value in alternatives]
    }


def _entry(model: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    data = model.bytes_of(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
