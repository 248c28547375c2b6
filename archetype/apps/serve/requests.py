"""Request bodies of the routes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from archetype.apps.serve.body import Body, Fields, Ignored, Unsupported
from archetype.apps.serve.errors import invalid_value
from archetype.apps.serve.generation_request import GenerationRequest
from archetype.apps.serve.limits import MAX_CHOICES, MAX_TOOLS
from archetype.apps.serve.messages import Message
from archetype.apps.serve.tools import Choice as ToolChoice
from archetype.apps.serve.tools import SentTool

Ids = list[int]
Prompts = str | list[str] | Ids | list[Ids]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompts
    use_beam_search: bool | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def prompts(self) -> list[str | Ids]:
        """Return the prompts as texts or lists of token ids.

        Raises:
            ApiError: the body has no prompts, or asks for too many choices.
        """
        return check_choices(as_list(self.prompt), self.n or 1, "prompt")


def as_list(prompts: Prompts) -> list[str | Ids]:
    """Return a list of prompts. A single prompt, given as text or as token ids, becomes a list of length 1."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)  # type: ignore[arg-type]


def check_choices(prompts: list[str | Ids], n: int, param: str) -> list[str | Ids]:
    """Return the prompts after a check of their number."""
    # an empty text may still have a begin token; an empty list of ids has nothing to continue
    if not prompts or not all(prompt or isinstance(prompt, str) for prompt in prompts):
        raise invalid_value(param, "is empty; send some text")
    if len(prompts) * n > MAX_CHOICES:
        cause = f"{len(prompts)} prompts x n {n} are {len(prompts) * n} choices; ask for at most {MAX_CHOICES} at once"
        raise invalid_value(param, cause)
    return prompts


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: Annotated[Any, Unsupported(False)] = None
    tools: Annotated[list[SentTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # OpenAI's older fields for tools, with the newer ones as the remedy
    functions: Annotated[Any, Unsupported([], instead="send tools")] = None
    function_call: Annotated[Any, Unsupported("none", "auto", instead="send tool_choice")] = None

    def without_effect(self) -> list[str]:
        names = super().without_effect()
        # no tool can be called, so none of the three has an effect
        if not self.tools or self.tool_choice == "none":
            return [*names, *sorted(self.model_fields_set & {"tools", "tool_choice", "parallel_tool_calls"})]
        sent: list[Any] = [*self.tools]
        if self.tool_choice in (None, "auto") and any(tool["function"].get("strict") for tool in sent):
            names.append("tools.function.strict")  # only required calls are constrained by a grammar
        return names

    def num_logprobs(self) -> int | None:
        """Return the number of alternatives per token; None for no log-probabilities.

        Raises:
            ApiError: top_logprobs is set without logprobs.
        """
        if self.top_logprobs and not self.logprobs:
            raise invalid_value("top_logprobs", "needs logprobs; set logprobs to true")
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "max", "first", "last"] | None = None
    normalize: bool | None = None
    dimensions: Annotated[Any, Unsupported()] = None
    user: Ignored = None


class ImageUrl(Fields):
    """Image as a data: URL."""

    url: str
    detail: Ignored = None


class ImagePart(Fields):
    """Image in the format of chat clients."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ClassifyRequest(Body):
    """POST /v1/classify: texts, or images as data: URLs."""

    model: str | None = None
    input: str | list[str] | list[ImagePart]
    user: Ignored = None


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
    """POST /api/inspect; exactly one of ids, text, messages, source and image is set."""

    model: str | None = None
    ids: list[int] | None = None
    text: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    source: str | Ids | None = None
    image: str | None = None
    target: str | Ids | None = None
    generate: Annotated[int, Field(ge=1, le=1024)] | None = None
