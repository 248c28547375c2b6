"""Common fields of responses, and tokens with their log-probabilities."""

import secrets
import time
from collections.abc import Callable
from typing import NotRequired

from typing_extensions import TypedDict

from archetype.apps.serve.errors import encode_json
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event, Logprobs


class Enveloped(TypedDict):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: NotRequired[int]
    total_tokens: int
    prompt_tokens_details: NotRequired[CachedTokens]


class LogprobColumns(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list["TokenLogprob"]]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Usage:
    """Return the `usage` object of a response."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Envelope:
    """Fields shared by all objects of one response.

    Args:
        prefix: prefix of the id, such as "chatcmpl".
        object: value of the field `object`.
    """

    def __init__(self, model: ServedModel, prefix: str, object: str) -> None:
        self.fields: Enveloped = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": object,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def chunks(self, with_usage: bool) -> Callable[[str], bytes]:
        """Return a function that turns a choice (as JSON) into a stream event with the common fields.

        Args:
            with_usage: whether the stream ends with a usage event; all other events then have `"usage": null`.
        """
        # the empty list marks where the choice goes; the fields around it are encoded once per response
        head, _, tail = encode_json(
            {**self.fields, "choices": [], **({"usage": None} if with_usage else {})}
        ).partition("[]")
        return lambda choice: f"data: {head}[{choice}]{tail}\n\n".encode()


class CompletionLogprobs:
    """Log-probabilities of a sequence in the format of the completions API.

    Args:
        count: number of alternatives per token.
        offset: length of the text before the first token, in characters.
    """

    def __init__(self, model: ServedModel, count: int, offset: int = 0) -> None:
        self._model, self._count, self._offset = model, count, offset
        self._columns: LogprobColumns = _no_logprobs()

    def add(self, token: int, text: str, logprobs: Logprobs | None) -> None:
        """Add a token and the text that it completes. The first token of a sequence has no log-probability."""
        name, alternatives = self._name(token), None
        if logprobs is not None:
            alternatives = dict[str, float]()
            for id, value in best(self._model, token, logprobs, self._count):
                key = self._name(id)  # if two tokens have the same text, the likelier is kept
                alternatives[key] = max(value, alternatives.get(key, value))
        self._columns["tokens"].append(name)
        self._columns["token_logprobs"].append(None if logprobs is None else logprobs.logprob)
        self._columns["top_logprobs"].append(alternatives)
        self._columns["text_offset"].append(self._offset)
        self._offset += len(text)

    def take(self) -> LogprobColumns:
        """Return the tokens added since the last call."""
        columns, self._columns = self._columns, _no_logprobs()
        return columns

    def _name(self, token: int) -> str:
        # a token that is part of a character is written as bytes, as in OpenAI's API
        data = self._model.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def joined(first: LogprobColumns, second: LogprobColumns) -> LogprobColumns:
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def _no_logprobs() -> LogprobColumns:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def chat_logprobs(model: ServedModel, event: Event, count: int) -> TokenLogprob:
    """Return a token and its alternatives in the format of the chat completions API."""
    assert event.token is not None and event.logprobs is not None
    entry = _entry(model, event.token, event.logprobs.logprob)
    entry["top_logprobs"] = [_entry(model, id, value) for id, value in event.logprobs.top[:count]]
    return entry


def _entry(model: ServedModel, token: int, logprob: float) -> TokenLogprob:
    data = model.bytes_of(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def best(model: ServedModel, token: int, logprobs: Logprobs, count: int) -> list[tuple[int, float]]:
    """Return the most likely tokens of a position, and the sampled token whatever its rank."""
    top = list(logprobs.top[:count])
    return top if any(id == token for id, _ in top) else [*top, (token, logprobs.logprob)]
