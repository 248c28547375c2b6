"""POST /v1/responses: one text in answer to a conversation, in the form of OpenAI's newer interface."""

import secrets
import time
from itertools import count
from typing import Any

from archetype.apps.serve.answers import chat_logprobs
from archetype.apps.serve.chat import conversation, only_ends
from archetype.apps.serve.errors import ApiError, event
from archetype.apps.serve.exchange import PING, Exchange
from archetype.apps.serve.generation import Choices, begin
from archetype.apps.serve.metrics import Metrics
from archetype.apps.serve.models import Models
from archetype.apps.serve.requests import ChatRequest
from archetype.apps.serve.response_request import ResponseRequest
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event


async def responses(models: Models, metrics: Metrics, exchange: Exchange) -> None:
    """Answer a request for a response."""
    body = exchange.read(ResponseRequest)
    chat = body.chat()
    async with models.use(body.model) as model:
        model.check("chat completions")
        try:
            encode = conversation(model, chat.messages, None, None)
            choices = await begin(
                model, chat, lambda: [encode()[1]], 1, None, chat.num_logprobs(), metrics, "input"
            )
        except ApiError as error:
            error.param = "input" if error.param == "messages" else error.param
            raise
        response = Response(model, body, chat, choices)
        try:
            if body.stream:
                await _stream(response, choices, exchange)
            else:
                await choices.read(response.add)
                await exchange.answer(response.object())
        finally:
            choices.cancel()


class Response:
    """A response as it grows.

    Args:
        model: that answers.
        body: of the request.
        chat: the same request as one for chat completions.
        choices: of the answer, which is one.
    """

    def __init__(self, model: ServedModel, body: ResponseRequest, chat: ChatRequest, choices: Choices) -> None:
        self._model, self._body, self._chat, self._choices = model, body, chat, choices
        self._count = chat.num_logprobs()
        self.id, self.item_id = f"resp_{secrets.token_hex(24)}", f"msg_{secrets.token_hex(24)}"
        self._created, self._completed = int(time.time()), 0
        self._text, self._logprobs, self._reason = "", list[dict[str, Any]](), ""

    def add(self, events: list[Event]) -> None:
        """Add what a step brought."""
        self.deltas(events)

    def deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        """Add what a step brought, and return it as deltas of a stream."""
        deltas = []
        for one in events:
            logprobs = []
            if self._count is not None and one.logprobs is not None and not only_ends(self._model, self._chat, one):
                logprobs = [chat_logprobs(self._model, one, self._count)]
            self._text += one.text
            self._logprobs += logprobs
            if one.text or logprobs:
                deltas.append({"delta": one.text, "logprobs": logprobs})
            if one.finish_reason is not None:
                self._reason, self._completed = one.finish_reason, int(time.time())
        return deltas

    def part(self) -> dict[str, Any]:
        """The content of the message."""
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def item(self) -> dict[str, Any]:
        """The message."""
        content = [self.part()] if self._text or self._reason else []
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": self.status, "content": content}

    @property
    def status(self) -> str:
        """Whether it is complete, or was cut off."""
        return {"": "in_progress", "length": "incomplete"}.get(self._reason, "completed")

    def object(self) -> dict[str, Any]:
        """The response, with its usage when it has ended."""
        body, sampling = self._body, self._model.lm.sampling
        numbers, has_ended = self._choices.usage, bool(self._reason)
        cached = numbers["prompt_tokens_details"]["cached_tokens"]
        usage = {
            "input_tokens": numbers["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": numbers["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": numbers["total_tokens"],
        }
        format = {"type": "text"}
        if body.text is not None and body.text.format is not None:
            format = body.text.format.model_dump(by_alias=True, exclude_unset=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed if self.status == "completed" else None,
            "status": self.status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self.status == "incomplete" else None,
            "model": self._model.name,
            "output": [self.item()] if has_ended else [],
            "usage": usage if has_ended else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "temperature": sampling.temperature if body.temperature is None else body.temperature,
            "top_p": sampling.top_p if body.top_p is None else body.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": {"format": format},
            "background": False,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
        }


async def _stream(response: Response, choices: Choices, exchange: Exchange) -> None:
    """Answer with a stream of events, each of which has its name and number."""
    numbers = count()
    at = {"item_id": response.item_id, "output_index": 0, "content_index": 0}

    def named(name: str, **fields: Any) -> bytes:
        kind = f"response.{name}"
        return f"event: {kind}\n".encode() + event({"type": kind, "sequence_number": next(numbers), **fields})

    def send(events: list[Event]) -> None:
        if deltas := response.deltas(events):
            write(b"".join(named("output_text.delta", **at, **delta) for delta in deltas))

    async with exchange.open_stream(choices.pause, last=b"") as write:
        write(
            named("created", response=response.object())
            + named("in_progress", response=response.object())
            + named("output_item.added", output_index=0, item=response.item())
            + named("content_part.added", **at, part=response.part())
        )
        await choices.read(send, ping=lambda: write(PING))
        part = response.part()
        write(
            named("output_text.done", **at, text=part["text"], logprobs=part["logprobs"])
            + named("content_part.done", **at, part=part)
            + named("output_item.done", output_index=0, item=response.item())
            + named(response.status, response=response.object())
        )
