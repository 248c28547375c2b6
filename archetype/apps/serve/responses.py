"""POST /v1/responses: one response to a conversation, in the format of OpenAI's Responses API."""

import secrets
import time
from itertools import count
from typing import Any, Literal

from typing_extensions import TypedDict

from archetype.apps.serve.answers import TokenLogprob, chat_logprobs
from archetype.apps.serve.chat import conversation, only_ends
from archetype.apps.serve.errors import ApiError, event
from archetype.apps.serve.exchange import PING, Exchange
from archetype.apps.serve.generation import Choices, begin
from archetype.apps.serve.requests import ChatRequest
from archetype.apps.serve.response_request import ResponseRequest
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event

Row = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Row]
    logprobs: list[TokenLogprob]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    temperature: float
    top_p: float
    top_logprobs: int
    text: Row
    background: bool
    parallel_tool_calls: bool
    previous_response_id: None
    store: bool
    tool_choice: Literal["none"]
    tools: list[Row]
    truncation: Literal["disabled"]


async def responses(exchange: Exchange, body: ResponseRequest) -> Response | None:
    chat = body.chat()
    async with exchange.app.models.use(body.model) as model:
        model.check("chat completions")
        try:
            encode = conversation(model, chat.messages, None, None)
            choices = await begin(
                model, chat, lambda: [encode()[1]], 1, None, chat.num_logprobs(), exchange.app.metrics, "input"
            )
        except ApiError as error:
            # the chat request calls it messages; the client has sent input
            error.param = "input" if error.param == "messages" else error.param
            raise
        exchange.cleanup.callback(choices.cancel)
        response = GrowingResponse(model, body, chat, choices)
        if body.stream:
            await _stream(response, choices, exchange)
            return None
        await choices.read(response.deltas)
        return response.object()


class GrowingResponse:
    """Streaming response that grows as text is generated.

    Args:
        chat: the same request in the format of chat completions.
        choices: choices of the request, of which there is only one.
    """

    def __init__(self, model: ServedModel, body: ResponseRequest, chat: ChatRequest, choices: Choices) -> None:
        self._model, self._body, self._chat, self._choices = model, body, chat, choices
        self._count = chat.num_logprobs()
        self.id, self.item_id = f"resp_{secrets.token_hex(24)}", f"msg_{secrets.token_hex(24)}"
        self._created, self._completed = int(time.time()), 0
        self._text, self._logprobs, self._reason = "", list[TokenLogprob](), ""

    def deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        """Add the events of a step, and return the added text as stream deltas."""
        deltas = []
        for step in events:
            logprobs = []
            # as in chat completions, a token that only ends the text is not listed
            if self._count is not None and step.logprobs is not None and not only_ends(self._model, self._chat, step):
                logprobs = [chat_logprobs(self._model, step, self._count)]
            self._text += step.text
            self._logprobs += logprobs
            if step.text or logprobs:
                deltas.append({"delta": step.text, "logprobs": logprobs})
            if step.finish_reason is not None:
                self._reason, self._completed = step.finish_reason, int(time.time())
        return deltas

    def part(self) -> OutputText:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def item(self) -> OutputMessage:
        # empty when the item is announced; the part is announced by an event of its own
        content = [self.part()] if self._text or self._reason else []
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": self.status, "content": content}

    @property
    def status(self) -> Status:
        """Return the status: in progress, completed, or incomplete if the text was cut off."""
        if not self._reason:
            return "in_progress"
        # "length" is max_output_tokens or the end of the context
        return "incomplete" if self._reason == "length" else "completed"

    def usage(self) -> ResponseUsage:
        """Return the number of prompt tokens and of generated tokens."""
        usage = self._choices.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def object(self) -> Response:
        """Return the response as JSON, with its usage if the response has ended."""
        # settings that the body leaves out are reported with the model's defaults
        body, sampling, has_ended = self._body, self._model.lm.sampling, bool(self._reason)
        format: Row = {"type": "text"}
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
            "usage": self.usage() if has_ended else None,
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


async def _stream(response: GrowingResponse, choices: Choices, exchange: Exchange) -> None:
    # the order of OpenAI's events: created, in_progress, item and part added, deltas, and everything done in reverse
    sequence_numbers = count()
    at = {"item_id": response.item_id, "output_index": 0, "content_index": 0}

    def named(name: str, **fields: Any) -> bytes:
        kind = f"response.{name}"  # named twice: in the event line, and in the data as `type`
        return f"event: {kind}\n".encode() + event({"type": kind, "sequence_number": next(sequence_numbers), **fields})

    def send(events: list[Event]) -> None:
        if deltas := response.deltas(events):
            stream.write(b"".join(named("output_text.delta", **at, **delta) for delta in deltas))

    # this API has no [DONE]: its last event is response.completed or response.incomplete
    async with exchange.open_stream(choices.pause, last=b"") as stream:
        stream.write(
            named("created", response=response.object())
            + named("in_progress", response=response.object())
            + named("output_item.added", output_index=0, item=response.item())
            + named("content_part.added", **at, part=response.part())
        )
        await choices.read(send, ping=lambda: stream.write(PING))
        part = response.part()
        stream.write(
            named("output_text.done", **at, text=part["text"], logprobs=part["logprobs"])
            + named("content_part.done", **at, part=part)
            + named("output_item.done", output_index=0, item=response.item())
            + named(response.status, response=response.object())
        )
