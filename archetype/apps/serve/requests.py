"""Bodies of requests, route by route."""

import json
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import ApiError, unsupported
from archetype.apps.serve.generation_request import GenerationRequest
from archetype.apps.serve.limits import MAX_CHOICES, MAX_TOOLS
from archetype.apps.serve.tools import Choice as ToolChoice
from archetype.apps.serve.tools import SentTool, check_calls, takes_text
from archetype.tokenizers.chat_template import ChatTemplate

Ids = list[int]
Prompts = str | list[str] | Ids | list[Ids]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompts
    use_beam_search: bool | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        name: values for name, values in GenerationRequest.neutral.items() if name != "use_beam_search"
    }

    def prompts(self) -> list[str | Ids]:
        """One or several texts or lists of ids.

        Raises:
            ApiError: there are none, or too many choices.
        """
        return check_choices(as_list(self.prompt), self.n or 1, "prompt")


def as_list(prompts: Prompts) -> list[str | Ids]:
    """One text, or the ids of one, as a list of texts."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)  # type: ignore[arg-type]


def check_choices(prompts: list[str | Ids], n: int, param: str) -> list[str | Ids]:
    """The prompts, if there are some, and not too many."""
    if not prompts or not all(prompt or isinstance(prompt, str) for prompt in prompts):
        raise ApiError("invalid_value", f"{param}: is empty; give some text", param)
    if len(prompts) * n > MAX_CHOICES:
        cause = f"{len(prompts)} x n {n} are {len(prompts) * n} choices; ask for at most {MAX_CHOICES} at once"
        raise ApiError("invalid_value", f"{param}: {cause}", param)
    return prompts


class Part(BaseModel):
    """A part of a message's content."""

    type: str
    text: str | None = None


class Message(BaseModel):
    """A message of a conversation; its other keys are for the model's template, which refuses what it does not read."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None


def plain_messages(messages: list[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Messages as a template reads them: contents as texts, arguments of calls as objects, results with their names.

    Raises:
        ApiError: a part is no text, or a message has more calls than the template writes.
    """
    plain: list[dict[str, Any]] = []
    names: dict[Any, str] = {}  # of the functions that were called, by the ids of calls
    for number, message in enumerate(messages):
        content = message.content if isinstance(message.content, list) else []
        for part in content:
            if part.type != "text" or part.text is None:
                place = f"messages[{number}].content"
                raise unsupported(place, f"this model reads text and no part of type {part.type!r:.40}")
        role = message.role
        if role == "developer" and not template.reads(role):
            role = "system"
        text = "".join(part.text or "" for part in content) if content else message.content
        more = message.model_extra or {}
        calls = [_with_arguments(call, template) for call in more.get("tool_calls") or ()]
        names |= {call.get("id"): _function(call).get("name", "") for call in calls if isinstance(call, dict)}
        if role == "tool" and names.get(more.get("tool_call_id")) and template.reads("name"):
            more = {"name": names[more.get("tool_call_id")]} | more
        written = {"role": role} if text is None else {"role": role, "content": text}  # null is absent in this API
        plain.append(written | more | {"tool_calls": calls or None})
    check_calls(plain, template)
    return plain


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _with_arguments(call: Any, template: ChatTemplate) -> Any:
    """A tool call as templates are given it: the name first, whatever the client's order, and its arguments, which the
    API has as a JSON text, as an object unless the template reads texts.
    """
    function = _function(call)
    if not isinstance(function.get("arguments"), str):
        return call
    arguments: Any = function["arguments"]
    if not takes_text(template):
        with suppress(ValueError, RecursionError):  # a template may take it as it is
            arguments = json.loads(arguments)
    return call | {"function": {"name": function.get("name"), **function, "arguments": arguments}}


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: Any = None
    tools: Annotated[list[SentTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        name: values
        for name, values in (GenerationRequest.neutral | {"echo": (False,)}).items()
        if name not in ("tools", "tool_choice")
    }
    ignored: ClassVar[frozenset[str]] = GenerationRequest.ignored - {"parallel_tool_calls"}
    instead: ClassVar[dict[str, str]] = {"functions": "send tools", "function_call": "send tool_choice"}

    def without_effect(self) -> list[str]:
        names = super().without_effect()
        if not self.tools or self.tool_choice == "none":
            return [*names, *sorted(self.model_fields_set & {"tools", "tool_choice", "parallel_tool_calls"})]
        sent: list[Any] = [*self.tools]
        if self.tool_choice in (None, "auto") and any(tool["function"].get("strict") for tool in sent):
            names.append("tools.function.strict")  # a grammar holds for calls that have to be
        return names

    def num_logprobs(self) -> int | None:
        """Alternatives of each token; None where no log-probabilities are asked for.

        Raises:
            ApiError: alternatives without log-probabilities.
        """
        if self.top_logprobs and not self.logprobs:
            raise ApiError("invalid_value", "top_logprobs: needs logprobs; set logprobs to true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "max", "first", "last"] | None = None
    normalize: bool | None = None
    dimensions: Any = None
    user: Any = None

    ignored: ClassVar[frozenset[str]] = frozenset({"user"})
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"dimensions": ()}


class ImageUrl(BaseModel):
    """Where an image is: in the URL itself."""

    url: str


class ImagePart(BaseModel):
    """An image as chat clients write it."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ClassifyRequest(Body):
    """POST /v1/classify: texts, or images as data: URLs."""

    model: str | None = None
    input: str | list[str] | list[ImagePart]
    user: Any = None

    ignored: ClassVar[frozenset[str]] = frozenset({"user"})


class TokenizeRequest(Body):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[SentTool], Field(max_length=MAX_TOOLS)] | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class InspectRequest(Body):
    """POST /api/inspect: one of ids, text, messages, source and image."""

    model: str | None = None
    ids: list[int] | None = None
    text: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    source: str | Ids | None = None
    image: str | None = None
    target: str | Ids | None = None
    generate: Annotated[int, Field(ge=1, le=1024)] | None = None
