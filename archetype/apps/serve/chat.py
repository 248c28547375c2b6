"""POST /v1/chat/completions: answers to conversations, rendered with the model's chat template."""

from collections.abc import Callable
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from archetype.apps.serve.answers import Envelope, Enveloped, TokenLogprob, Usage, chat_logprobs
from archetype.apps.serve.completions import index_of
from archetype.apps.serve.errors import ApiError, encode_json, event, invalid_value
from archetype.apps.serve.exchange import PING, Exchange
from archetype.apps.serve.generation import Choices, begin, check_tokens
from archetype.apps.serve.messages import Message, plain_messages
from archetype.apps.serve.requests import ChatRequest
from archetype.apps.serve.served_model import ServedModel
from archetype.apps.serve.tools import Answer, AssistantMessage, ToolUse, tool_use
from archetype.errors import ArchetypeError
from archetype.generate import Event


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: NotRequired[list[int]]


class PromptIds(TypedDict, total=False):
    prompt_token_ids: list[int]


class ChatCompletion(Enveloped, PromptIds):
    choices: list[ChatChoice]
    usage: Usage


class RenderedPrompt(TypedDict):
    model: str
    prompt: str
    token_ids: list[int]
    count: int


async def chat_completions(exchange: Exchange, body: ChatRequest) -> ChatCompletion | None:
    count = body.num_logprobs()
    async with exchange.app.models.use(body.model) as model:
        model.check("chat completions")
        encode = _prompt(model, body)
        use = await _use_of_tools(model, body)
        choices = await begin(
            model,
            body,
            lambda: [encode()[1]],
            1,
            None,
            count,
            exchange.app.metrics,
            "messages",
            more={} if use is None else use.settings(),
        )
        # also after the last event: it releases the memory held for the response
        exchange.cleanup.callback(choices.cancel)
        answers = [Answer(use) for _ in range(choices.n)]
        if body.stream:
            envelope = Envelope(model, "chatcmpl", "chat.completion.chunk")
            await _stream(model, body, choices, answers, envelope, count, exchange)
            return None
        return await _answer(model, body, choices, answers, Envelope(model, "chatcmpl", "chat.completion"), count)


async def render(exchange: Exchange, body: ChatRequest) -> RenderedPrompt:
    """Respond with the rendered prompt of a conversation and its token ids."""
    async with exchange.app.models.use(body.model) as model:
        model.check("chat completions")
        text, ids = await model.worker.text(_prompt(model, body))
    return {"model": model.name, "prompt": text, "token_ids": ids, "count": len(ids)}


async def _use_of_tools(model: ServedModel, body: ChatRequest) -> ToolUse | None:
    # a choice that requires a call without any tools is refused by `tool_use`
    if not body.tools and body.tool_choice in (None, "auto", "none"):
        return None
    use = await model.worker.text(lambda: tool_use(model, body.tools, body.tool_choice, body.parallel_tool_calls))
    if use is not None and body.grammar():
        cause = "cannot be combined with a response format or grammar"
        raise invalid_value("tools", f"{cause}; remove one of them, or set tool_choice to none")
    return use


def _prompt(model: ServedModel, body: ChatRequest) -> Callable[[], tuple[str, list[int]]]:
    # with tool_choice "none" the template gets no tools either: a model calls the tools that it knows
    tools = None if body.tool_choice == "none" else body.tools
    return conversation(model, body.messages, body.add_generation_prompt, body.continue_final_message, tools)


def conversation(
    model: ServedModel,
    messages: list[Message],
    add_generation_prompt: bool | None,
    continue_final: bool | None,
    tools: list[Any] | None = None,
) -> Callable[[], tuple[str, list[int]]]:
    """Return a function that renders messages with the chat template and tokenizes them. It runs in a text thread.

    Args:
        add_generation_prompt: whether the rendered text ends with the header of the assistant's turn (default: yes).
        continue_final: whether to leave the last message open so that the model continues it.
        tools: tools that the model may call.

    Raises:
        ApiError: the model has no template. The returned function raises it if the template rejects the messages.
    """
    if continue_final and add_generation_prompt:
        cause = "cannot be combined with add_generation_prompt"
        raise invalid_value("continue_final_message", f"{cause}; set only one of them")
    template, tokenizer = model.lm.template, model.tokenizer
    if template is None:
        message = (
            f"{model.name} has no chat template; use /v1/completions, or start the server with "
            "--chat-template FILE, or with the name of a known template such as chatml"
        )
        raise ApiError("no_chat_template", message, "messages")

    def encode() -> tuple[str, list[int]]:
        try:
            plain = plain_messages(messages, template.for_tools(tools or None))
            if continue_final:
                text = template.render_continued(plain, tools or None)
            else:
                text = template.render(plain, add_generation_prompt is not False, tools or None)
        except ArchetypeError as error:
            raise ApiError("invalid_value", str(error), "tools" if error.place == "tools" else "messages") from None
        # the template writes the special tokens as text
        return text, check_tokens(model, tokenizer.encode_with_special_tokens(text), "messages")

    return encode


async def _answer(
    model: ServedModel,
    body: ChatRequest,
    choices: Choices,
    answers: list[Answer],
    envelope: Envelope,
    count: int | None,
) -> ChatCompletion:
    reasons: list[Literal["stop", "length", "tool_calls"]] = ["length"] * choices.n
    contents: list[list[TokenLogprob]] = [[] for _ in answers]

    def add(events: list[Event]) -> None:
        for step in events:
            index = index_of(step)
            answers[index].push(step.text, step.finish_reason is not None)
            reasons[index] = answers[index].reason(step.finish_reason)
            if count is not None and step.logprobs is not None and not only_ends(model, body, step):
                contents[index].append(chat_logprobs(model, step, count))

    await choices.read(add)
    items = list[ChatChoice]()
    for index, answer in enumerate(answers):
        item: ChatChoice = {
            "index": index,
            "message": answer.message(),
            "logprobs": None if count is None else {"content": contents[index], "refusal": None},
            "finish_reason": reasons[index],
        }
        if body.return_token_ids:
            item["token_ids"] = choices.requests[index].tokens if choices.requests else []
        items.append(item)
    prompt_ids: PromptIds = {"prompt_token_ids": choices.prompts[0]} if body.return_token_ids else {}
    return {**envelope.fields, **prompt_ids, "choices": items, "usage": choices.usage}


async def _stream(
    model: ServedModel,
    body: ChatRequest,
    choices: Choices,
    answers: list[Answer],
    envelope: Envelope,
    count: int | None,
    exchange: Exchange,
) -> None:
    # as OpenAI's API does: the role first, an empty delta with the reason last
    make = envelope.chunks(body.include_usage)

    def chunk(index: int, delta: str, logprobs: Any = None, reason: str | None = None, rest: str = "") -> bytes:
        # only the changing fields are encoded; `make` adds the fields that all chunks share
        values = "null" if logprobs is None else encode_json(logprobs)
        end = "null" if reason is None else f'"{reason}"'
        return make(f'{{"index":{index},"delta":{delta},"logprobs":{values},"finish_reason":{end}{rest}}}')

    def send(events: list[Event]) -> None:
        pieces = []
        for step in events:
            index, logprobs = index_of(step), None
            if count is not None and step.logprobs is not None and not only_ends(model, body, step):
                logprobs = {"content": [chat_logprobs(model, step, count)], "refusal": None}
            ids = f',"token_ids":[{step.token}]' if body.return_token_ids and step.token is not None else ""
            deltas = answers[index].push(step.text, step.finish_reason is not None)
            # a token may add no text, for example if it ends within a character
            if not deltas and (logprobs or ids):
                deltas = [{"content": ""}]
            for delta in deltas:
                pieces.append(chunk(index, encode_json(delta), logprobs, rest=ids))
                logprobs, ids = None, ""  # sent with the first delta only
            if step.finish_reason is not None:
                pieces.append(chunk(index, "{}", reason=answers[index].reason(step.finish_reason)))
        if pieces:
            stream.write(b"".join(pieces))

    async with exchange.open_stream(choices.pause) as stream:
        stream.write(b"".join(chunk(index, '{"role":"assistant","content":""}') for index in range(choices.n)))
        # max_tokens 0: the role, then the end
        if not choices.requests:
            stream.write(b"".join(chunk(index, "{}", reason="length") for index in range(choices.n)))
        await choices.read(send, ping=lambda: stream.write(PING))
        if body.include_usage:
            stream.write(event({**envelope.fields, "choices": [], "usage": choices.usage}))


def only_ends(model: ServedModel, body: ChatRequest, step: Event) -> bool:
    """Return whether a token only ends the text. Chat completions do not list these tokens."""
    return step.finish_reason == "stop" and step.token in (*model.lm.ends, *(body.stop_token_ids or ()))
