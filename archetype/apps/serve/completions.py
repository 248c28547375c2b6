"""POST /v1/completions: completions of prompts, their log-probabilities, and translations."""

from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from archetype.api.seq2seq_lm import Seq2SeqLM
from archetype.apps.serve.answers import CompletionLogprobs, Envelope, Enveloped, LogprobColumns, Usage, joined, usage
from archetype.apps.serve.errors import blaming, encode_json, event, invalid_value, unsupported
from archetype.apps.serve.exchange import PING, Exchange
from archetype.apps.serve.generation import Choices, begin, check_tokens
from archetype.apps.serve.requests import CompletionRequest, Ids
from archetype.apps.serve.served_model import ServedModel
from archetype.generate import Event, Logprobs, Translation

DEFAULT_TOKENS = 16
OF_BEAMS = {"model", "prompt", "use_beam_search", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
NEUTRAL = {"n": 1, "temperature": 0, "best_of": 1, "length_penalty": 1}  # values that match what a beam search does


FinishReason = Literal["stop", "length"]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: LogprobColumns | None
    finish_reason: FinishReason
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(Enveloped):
    choices: list[CompletionChoice]
    usage: Usage


@dataclass
class Echo:
    """Prompt repeated before each of its completions; empty unless `echo` is set.

    Attributes:
        logprobs: log-probabilities of the prompt's tokens.
    """

    text: str
    logprobs: LogprobColumns


async def completions(exchange: Exchange, body: CompletionRequest) -> Completion | None:
    async with exchange.app.models.use(body.model) as model:
        model.check("completions")
        if body.use_beam_search:
            return await _translate(model, body, exchange)
        if model.translates and body.echo:
            raise unsupported("echo", "an encoder-decoder reads the prompt as its source; remove it")
        prompt_texts = body.prompts()
        envelope = Envelope(model, "cmpl", "text_completion")
        choices = await begin(
            model,
            body,
            lambda: [encode(model, text, body.add_special_tokens is not False) for text in prompt_texts],
            len(prompt_texts),
            None if model.translates else DEFAULT_TOKENS,
            body.logprobs,
            exchange.app.metrics,
            "prompt",
            at_once=all(isinstance(text, list) for text in prompt_texts),
        )
        exchange.cleanup.callback(choices.cancel)  # also after the last event: it releases memory
        of_prompts = await _echoes(model, body, prompt_texts, choices.prompts)
        echoes = [echo for echo in of_prompts for _ in range(choices.n)]  # of each choice
        if body.stream:
            await _stream(model, body, choices, echoes, envelope, exchange)
            return None
        return await _answer(model, body, choices, echoes, envelope)


def encode(model: ServedModel, text: str | Ids, add_special_tokens: bool = True) -> list[int]:
    """Tokenize a prompt, or the complete text for an encoder. Token ids are only checked.

    Raises:
        ApiError: the prompt has no tokens, or an id is outside the vocabulary.
    """
    if isinstance(text, list):
        return check_tokens(model, text, "prompt")
    tokenizer, engine = model.tokenizer, model.worker.engine
    with blaming("prompt"):
        # the source of an encoder-decoder is encoded by its engine
        if model.translates and engine is not None:
            return engine.prompts.encode(text)
        ids = tokenizer.encode_prompt(text) if add_special_tokens else tokenizer.encode(text)
    return check_tokens(model, ids, "prompt")


async def _echoes(
    model: ServedModel, body: CompletionRequest, prompt_texts: list[str | Ids], prompts: list[list[int]]
) -> list[Echo]:
    # one pass per prompt, between two steps of the engine
    engine, count = model.worker.engine, body.logprobs
    assert engine is not None

    async def echo(text: str | Ids, ids: list[int]) -> Echo:
        logprobs = None if count is None else (await model.worker.run(lambda: engine.score([ids], count)))[0]
        return await model.worker.text(lambda: _echo(model, text, ids, logprobs, count))

    if not body.echo:
        return [Echo("", CompletionLogprobs(model, 0).take()) for _ in prompts]
    return [await echo(text, ids) for text, ids in zip(prompt_texts, prompts, strict=True)]


def _echo(
    model: ServedModel, text: str | Ids, ids: list[int], scores: list[Logprobs | None] | None, count: int | None
) -> Echo:
    if model.lm.tokenizer is None:
        pieces = [""] * len(ids)
    else:
        stream = model.lm.tokenizer.stream()
        pieces = [stream.push(id) for id in ids]
        # the bytes of an incomplete character belong to the last token
        pieces[-1] += stream.finish()
    logprobs = CompletionLogprobs(model, count or 0)
    for id, piece, score in zip(ids, pieces, scores or (), strict=scores is not None):
        logprobs.add(id, piece, score)
    return Echo(text if isinstance(text, str) else "".join(pieces), logprobs.take())


async def _answer(
    model: ServedModel, body: CompletionRequest, choices: Choices, echoes: list[Echo], envelope: Envelope
) -> Completion:
    outputs, reasons = [""] * len(echoes), list[FinishReason](["length"]) * len(echoes)
    lists = [CompletionLogprobs(model, body.logprobs or 0, len(echo.text)) for echo in echoes]

    def add(events: list[Event]) -> None:
        for step in events:
            index = index_of(step)
            outputs[index] += step.text
            # every reason but "stop" is "length" in this format
            reasons[index] = "stop" if step.finish_reason == "stop" else "length"
            if body.logprobs is not None and step.token is not None:
                lists[index].add(step.token, step.text, step.logprobs)

    await choices.read(add)
    items = list[CompletionChoice]()
    for index, echo in enumerate(echoes):
        item: CompletionChoice = {
            "index": index,
            "text": echo.text + outputs[index],
            "logprobs": None,
            "finish_reason": reasons[index],
        }
        if body.logprobs is not None:
            item["logprobs"] = joined(echo.logprobs, lists[index].take())
        if body.return_token_ids:
            tokens = choices.requests[index].tokens if choices.requests else []
            item["token_ids"], item["prompt_token_ids"] = tokens, choices.prompts[index // choices.n]
        items.append(item)
    return {**envelope.fields, "choices": items, "usage": choices.usage}


async def _stream(
    model: ServedModel,
    body: CompletionRequest,
    choices: Choices,
    echoes: list[Echo],
    envelope: Envelope,
    exchange: Exchange,
) -> None:
    make = envelope.chunks(body.include_usage)
    lists = [CompletionLogprobs(model, body.logprobs or 0, len(echo.text)) for echo in echoes]

    def chunk(index: int, text: str, logprobs: LogprobColumns | None, reason: str | None, ids: list[int]) -> bytes:
        # assembled from strings, since every token is a chunk
        rest = f',"token_ids":{ids}' if body.return_token_ids else ""
        values = "null" if logprobs is None else encode_json(logprobs)
        end = "null" if reason is None else f'"{reason}"'
        return make(f'{{"index":{index},"text":{encode_json(text)},"logprobs":{values},"finish_reason":{end}{rest}}}')

    def send(events: list[Event]) -> None:
        pieces = []
        for step in events:
            index, logprobs = index_of(step), None
            if body.logprobs is not None and step.token is not None:
                lists[index].add(step.token, step.text, step.logprobs)
                logprobs = lists[index].take()
            if step.text or step.finish_reason or logprobs or body.return_token_ids:
                ids = [] if step.token is None else [step.token]
                pieces.append(chunk(index, step.text, logprobs, step.finish_reason, ids))
        if pieces:
            stream.write(b"".join(pieces))

    async with exchange.open_stream(choices.pause) as stream:
        if body.echo or not choices.requests:
            # max_tokens 0 makes no requests: the echo is the whole answer, and ends it
            reason = None if choices.requests else "length"
            for index, echo in enumerate(echoes):
                logprobs, ids = (None if body.logprobs is None else echo.logprobs), choices.prompts[index // choices.n]
                stream.write(chunk(index, echo.text, logprobs, reason, ids if body.echo else []))
                await stream.flush()
        await choices.read(send, ping=lambda: stream.write(PING))
        if body.include_usage:
            stream.write(event({**envelope.fields, "choices": [], "usage": choices.usage}))


def index_of(step: Event) -> int:
    return step.request.id.index  # type: ignore[attr-defined]


async def _translate(model: ServedModel, body: CompletionRequest, exchange: Exchange) -> Completion | None:
    lm = model.lm
    if not isinstance(lm, Seq2SeqLM):
        raise unsupported("use_beam_search", "only encoder-decoders support beam search; remove it")
    sources = [source for source in body.prompts() if isinstance(source, str)]
    if len(sources) < len(body.prompts()):
        raise invalid_value("prompt", "beam search reads text, not token ids; send a text")
    # a field with its neutral value has no effect
    set_fields = (name for name in body.model_fields_set - body.ignored if getattr(body, name) not in (None, False))
    for name in sorted(set_fields):
        if name not in OF_BEAMS and not (name in NEUTRAL and getattr(body, name) == NEUTRAL[name]):
            raise unsupported(name, "beam search returns only the likeliest target; remove it")
    limit, envelope = body.most_tokens(), Envelope(model, "cmpl", "text_completion")
    beam = {} if limit is None else {"max_new_tokens": limit}
    targets = [Translation(is_cut=True) for _ in sources]
    with blaming("prompt"):
        if limit != 0:
            steps = lm.translations(sources, **beam)
            # the generator yields None after each decoding step, and the targets at the end
            while (step := await model.worker.run(lambda: next(steps))) is None:
                pass  # one decoding step at a time, so that other requests get their turns
            targets = step
        source_ids = await model.worker.text(lambda: [encode(model, text) for text in sources])
    token_counts = usage(sum(map(len, source_ids)), sum(target.num_tokens for target in targets))
    items: list[CompletionChoice] = [
        {"index": index, "text": target.text, "logprobs": None, "finish_reason": "length" if target.is_cut else "stop"}
        for index, target in enumerate(targets)
    ]
    if not body.stream:
        return {**envelope.fields, "choices": items, "usage": token_counts}
    make = envelope.chunks(body.include_usage)
    async with exchange.open_stream() as stream:
        stream.write(b"".join(make(encode_json(item)) for item in items))
        if body.include_usage:
            stream.write(event({**envelope.fields, "choices": [], "usage": token_counts}))
    return None
