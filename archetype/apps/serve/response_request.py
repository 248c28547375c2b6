"""Body of POST /v1/responses, and its conversion to a chat request."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from archetype.apps.serve.body import IGNORED, Body, Fields, Ignored, Unsupported, unknown
from archetype.apps.serve.errors import ApiError, invalid_value, unsupported
from archetype.apps.serve.generation_request import Count, Probability, Seed
from archetype.apps.serve.requests import ChatRequest

LOGPROBS = "message.output_text.logprobs"  # the only value of `include` supported
CHAT = "send it to /v1/chat/completions"


class InputPart(Fields):
    """Part of a message's content. Parts of earlier responses have extra keys."""

    # further keys depend on the type, so an unsupported type is refused before an unknown key
    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    annotations: Ignored = None
    logprobs: Ignored = None
    prompt_cache_breakpoint: Ignored = None

    def check(self, path: str = "") -> None:
        if self.type not in ("input_text", "output_text") or self.text is None:
            cause = f"is a part of type {self.type!r:.40}; send input_text or output_text"
            raise ApiError("unsupported_parameter", f"{path[:-1]}: {cause}", "input")
        if self.model_extra:
            raise unknown(f"{path}{(key := next(iter(self.model_extra)))}", key, InputPart.model_fields)


class InputItem(Fields):
    """Message of the input. Other items, such as tool calls, are refused."""

    # as in `InputPart`
    model_config = ConfigDict(extra="allow")

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None

    def check(self, path: str = "") -> None:
        if self.type != "message":
            cause = f"{self.type!r:.40} is not supported; send only messages"
            raise ApiError("unsupported_parameter", f"{path}type: {cause}", "input")
        if self.model_extra:
            raise unknown(f"{path}{(key := next(iter(self.model_extra)))}", key, InputItem.model_fields)
        if self.role is None or self.content is None:
            raise ApiError("invalid_value", f"{path[:-1]}: has no role or no content; add both", "input")
        super().check(path)

    def message(self) -> dict[str, Any]:
        """Return the message in the format of chat completions."""
        parts = self.content if isinstance(self.content, list) else None
        return {"role": self.role, "content": self.content if parts is None else "".join(p.text or "" for p in parts)}


class TextFormat(Fields):
    """Format of the generated text."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None  # every schema is obeyed
    name: Annotated[str | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None

    def check(self, path: str = "") -> None:
        if self.type == "json_schema" and self.schema_ is None:
            raise ApiError("invalid_value", f"{path}schema: is missing; add a schema", "text")

    def without_effect(self) -> list[str]:
        if self.type == "json_schema":
            return super().without_effect()
        return sorted("schema" if name == "schema_" else name for name in self.model_fields_set - {"type"})


class TextConfig(Fields):
    """Text settings of a response."""

    format: TextFormat | None = None
    verbosity: Ignored = None


class ResponseStreamOptions(Fields):
    """Options of a stream."""

    include_obfuscation: Ignored = None


class ResponseRequest(Body):
    """POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: Seed | None = None
    ignore_eos: bool | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    # accepted without effect
    user: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    reasoning: Ignored = None
    parallel_tool_calls: Ignored = None
    max_tool_calls: Ignored = None
    # refused, unless the value changes nothing
    tools: Annotated[Any, Unsupported([], instead=CHAT)] = None
    tool_choice: Annotated[Any, Unsupported("none", "auto", instead=CHAT)] = None
    previous_response_id: Annotated[Any, Unsupported(instead="send the earlier messages in input")] = None
    conversation: Annotated[Any, Unsupported(instead="send the earlier messages in input")] = None
    prompt: Annotated[Any, Unsupported(instead="send instructions and input")] = None
    background: Annotated[Any, Unsupported(False)] = None
    background_options: Annotated[Any, Unsupported()] = None
    truncation: Annotated[Any, Unsupported("disabled")] = None
    context_management: Annotated[Any, Unsupported([])] = None
    moderation: Annotated[Any, Unsupported()] = None
    access_programs: Annotated[Any, Unsupported()] = None
    image: Annotated[Any, Unsupported()] = None
    expected: ClassVar[dict[str, str]] = {
        "input": 'a text, or a list of messages such as {"role": "user", "content": "Hi"}'
    }

    def check(self, path: str = "") -> None:
        super().check(path)
        for name in self.include or ():
            if name != LOGPROBS:
                raise unsupported("include", f"{name!r:.60} has no equivalent here; the only value is {LOGPROBS!r}")
        if self.top_logprobs and not self.include:
            raise invalid_value("top_logprobs", f"needs include to name {LOGPROBS!r}")

    def without_effect(self) -> list[str]:
        names = super().without_effect()
        if self.stream_options is not None and not self.stream:
            # named once as a whole, rather than by each of its fields
            names = [name for name in names if not name.startswith("stream_options.")] + ["stream_options"]
        return names

    def chat(self) -> ChatRequest:
        """Return the equivalent request for chat completions."""
        # in this API the system message is a field of its own
        messages = [{"role": "system", "content": self.instructions}] if self.instructions is not None else []
        items = self.input if isinstance(self.input, list) else [InputItem(role="user", content=self.input)]
        messages += [item.message() for item in items]
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "ignore_eos", "stream")
        values = {name: getattr(self, name) for name in names}
        format = None if self.text is None else self.text.format
        if format is not None:
            schema = None if format.schema_ is None else {"schema": format.schema_}
            values["response_format"] = {"type": format.type, "json_schema": schema}
        values |= {"logprobs": bool(self.include), "top_logprobs": self.top_logprobs}
        return ChatRequest.model_validate({"messages": messages, "max_tokens": self.max_output_tokens, **values})
